"""Scripted OpenAI-compatible servers for tests and rehearsals: a teacher and a judge."""
