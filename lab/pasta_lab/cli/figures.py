"""Figures as cells and objects on standard output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pasta_lm.cli.terminal import print_json

MISSING = "-"  # stands for a number that does not exist


def print_figures(
    figures: dict[str, Any], as_tables: Callable[[dict[str, Any]], None], *, as_json: bool
) -> None:
    """Print the figures of a verb: one JSON object, or its tables."""
    show = print_json if as_json else as_tables
    show(figures)


def number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def interval(figure: Mapping[str, Any] | None, digits: int = 3) -> str:
    """Format a figure with ``mean``, ``low`` and ``high`` for a table."""
    if figure is None:
        return MISSING
    mean, low, high = (number(figure[key], digits) for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"
