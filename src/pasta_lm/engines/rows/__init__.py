"""Threads as rows: each is a plain causal text with a cache of the model's own class."""
