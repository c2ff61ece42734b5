"""Training: collation, losses, supervised finetuning and preference optimisation."""
