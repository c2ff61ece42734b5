"""Ways to answer a prompt, one file each; all use one engine and one kind of trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Prompt = str | Sequence[Mapping[str, Any]]
"""A text is the user's message; messages have ``role`` and ``content``."""
