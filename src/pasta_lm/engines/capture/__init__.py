"""Captures the graph of a pass, and joins its operations."""
