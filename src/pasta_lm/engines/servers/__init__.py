"""Decode with completions servers."""
