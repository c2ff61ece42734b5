"""Tables and JSON on standard output."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

import typer

MISSING = "-"
"""Printed in the place of a number that does not exist."""
GAP = "  "


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: Collection[int] = (0,)
) -> None:
    """Print a table, each row one line, however wide; see ``table_lines``."""
    for line in table_lines(header, rows, text_columns=text_columns):
        typer.echo(line)


def table_lines(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: Collection[int] = (0,)
) -> list[str]:
    """Return the lines of a table; every column is as wide as its widest cell.

    A row with fewer cells than the header ends with a note ("not run: …"), which may run on over
    the columns that follow.

    Args:
        header: The titles of the columns; the first is often empty.
        rows: The cells.
        text_columns: Columns that are aligned to the left; numbers are aligned to the right.
    """
    whole = [header, *rows]
    widths = [
        max(len(row[column]) for row in whole if len(row) == len(header) or column < len(row) - 1)
        for column in range(len(header))
    ]
    return [_line(row, widths, text_columns) for row in whole]


def _line(row: Sequence[str], widths: Sequence[int], text_columns: Collection[int]) -> str:
    cells = [
        cell.ljust(width) if column in text_columns else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=False))
    ]
    if len(row) < len(widths):
        cells[-1] = row[-1]
    return GAP.join(cells).rstrip()


def print_facts(*sections: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns, with an empty line between sections."""
    listed = [list(section) for section in sections]
    width = max(len(name) for section in listed for name, _ in section)
    for index, section in enumerate(listed):
        if index:
            typer.echo()
        for name, value in section:
            typer.echo(f"{name:<{width}}{GAP}{value}")


def print_json(values: Mapping[str, object]) -> None:
    """Print one JSON object on one line."""
    typer.echo(json.dumps(values, ensure_ascii=False))


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """Format a number for a table."""
    return MISSING if value is None else f"{value:.{digits}f}{unit}"
