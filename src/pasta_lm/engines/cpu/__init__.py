"""Faster execution of a model with the same logits; without this package everything still works.

It depends on private names of torch (ATen operations, oneDNN layouts), which may change with a
release: whatever does not trace or does not give the model's own logits is not used.
"""
