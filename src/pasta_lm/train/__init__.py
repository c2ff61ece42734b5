"""How we learn: collation, losses, supervised finetuning, preferences."""
