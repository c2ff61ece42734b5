"""Figures as cells of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MISSING = "-"  # stands for a number that does not exist


def number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def interval(figure: Mapping[str, Any] | None, digits: int = 3) -> str:
    """Format a figure with ``mean``, ``low`` and ``high`` for a table."""
    if figure is None:
        return MISSING
    mean, low, high = (number(figure[key], digits) for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"
