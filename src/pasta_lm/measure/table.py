"""Figures of a report as tables: one place makes text of a cell, one Markdown, one JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from pasta_lm.measure.intervals import Interval

Figure = Interval | float | int | None
Cell = str | Figure
Cells = Sequence[Cell]
MISSING = "-"
"""Stands where there is no figure."""
FIGURE_HEADER = ("figure", "value", "low", "high", "n")
"""The columns of ``figure_row``; low and high bound the 95 % interval."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, one value a cell; the first column names the row."""

    header: Sequence[str]
    rows: Sequence[Cells]
    title: str = ""
    note: str = ""
    """Stands below the table."""
    digits: int = 3
    """Decimals of its numbers."""

    def texts(self) -> list[list[str]]:
        """Return the rows as texts."""
        return [[cell(value, self.digits) for value in row] for row in self.rows]


def figure_row(title: str, figure: Figure, num: int | None) -> Cells:
    """Return the row of a figure over ``num`` prompts: its value and the bounds of its interval."""
    if isinstance(figure, Interval):
        return title, figure.mean, figure.low, figure.high, num
    return title, figure, None, None, num


def cell(value: Cell, digits: int = 3) -> str:
    """Format a value for a table; an interval is its mean."""
    if isinstance(value, Interval):
        value = value.mean
    if value is None:
        return MISSING
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def markdown(title: str, facts: Sequence[str], tables: Sequence[Table], note: str = "") -> str:
    """Return a page: its title, a list of facts, the tables under their titles, and a note."""
    parts = [f"# {title}", "\n".join(f"- {_escaped(fact)}" for fact in facts)]
    for table in tables:
        columns = zip(table.header, *table.rows, strict=True)
        is_text = [any(isinstance(value, str) for value in column[1:]) for column in columns]
        ruler = ["---" if left else "--:" for left in is_text]
        rows = [table.header, ruler, *table.texts()]
        parts += [f"## {_escaped(table.title)}"] if table.title else []
        parts.append("\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in rows))
        parts += [_escaped(table.note)] if table.note else []
    return "\n\n".join(part for part in (*parts, note) if part) + "\n"


def _escaped(text: str) -> str:
    """Return a text that is neither HTML nor the end of a cell."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def fields_of(report: object) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON has them."""
    assert is_dataclass(report)
    return {field.name: to_json(getattr(report, field.name)) for field in fields(report)}


def to_json(value: object) -> Any:
    """Return a report as JSON has it; intervals are rounded to five digits."""
    if isinstance(value, Interval):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, Mapping):
        return {key: to_json(part) for key, part in value.items()}
    return [to_json(part) for part in value] if isinstance(value, list | tuple) else value
