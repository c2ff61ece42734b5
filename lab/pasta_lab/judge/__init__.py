"""The laboratory of pasta-lm: evidence for its authors, not tools for its users."""
