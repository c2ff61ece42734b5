"""The exit codes of ``pasta``, each defined once; those of errors belong to the error classes."""

from __future__ import annotations

from typing import Final

from pasta_lm.errors import InputError, PastaError, UsageError

DONE: Final = 0
FAILED: Final = PastaError.exit_code
USAGE: Final = UsageError.exit_code
"""A flag, a setting or a recipe cannot be used."""
INVALID: Final = InputError.exit_code
"""A file, a line or a prompt is invalid."""
INTERRUPTED: Final = 130
"""Ctrl-C, as shells report it: 128 + SIGINT."""
