"""The families, a file for each template group."""
