"""Any transformers causal model, exactly: many responses and many threads in one forward pass."""
