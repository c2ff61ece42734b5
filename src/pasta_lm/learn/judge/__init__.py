"""Judges compare two answers to a prompt: the protocol, and a language model as judge."""
