"""The command line: one file a verb."""

from pasta_lm.cli.app import app, main

__all__ = ["app", "main"]
