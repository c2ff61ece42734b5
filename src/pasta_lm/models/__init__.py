"""Tokenizers, model folders and adapters on disk; export to stock formats."""
