"""A report is a list of figures: one place makes of them JSON, tables and a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pasta_lm.measure.intervals import Interval

Figure = Interval | float | int | None
Cell = str | Figure
Cells = Sequence[Cell]
Place = tuple[str, ...]
MISSING = "-"
"""Stands where there is no figure."""
HEADER = ("figure", "value", "low", "high", "n")
COMPARED_HEADER = ("figure", "pasta", "sequential", "difference", "low", "high", "pairs")
GROUPS = {"systems", "datasets", "sets", "parts"}
"""Keys of objects that are named in no title: their members are."""


class Compared(NamedTuple):
    """A measure of both systems, and their difference where both have a value."""

    pasta: Figure
    sequential: Figure
    difference: Figure
    num_pairs: int


class Metric(NamedTuple):
    """One figure of a report."""

    place: Place
    """Keys of the objects around it in JSON; figures of one place stand in one table."""
    key: str
    value: Any
    """JSON, in which a figure may be an ``Interval`` or ``Compared``."""
    title: str = ""
    """In tables; without one it stands in JSON alone."""
    num: int | None = None
    """The number of prompts or answers."""

    def cells(self) -> Cells:
        """Return its value and the bounds of its 95 % interval."""
        value, difference, num = self.value, self.value, self.num
        both: Cells = ()
        if isinstance(value, Compared):
            both, difference, num = (value.pasta, value.sequential), value.difference, value[3]
        bounds: Cells = (None, None)
        if isinstance(difference, Interval):
            bounds = (difference.low, difference.high)
        return [self.title, *both, difference, *bounds, num]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of a run, and the words around them."""

    title: str
    rows: list[Metric]
    facts: list[str] = field(default_factory=list)
    notes: Mapping[Place, Sequence[str]] = field(default_factory=dict)
    """Footnotes of the tables."""
    ending: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the object that a verb prints with ``--json``."""
        result: dict[str, Any] = {}
        for row in self.rows:
            at = result
            for key in row.place:
                at = at.setdefault(key, {})
            at[row.key] = to_json(row.value)
        return result

    def at(self, *place: str) -> dict[str, Any]:
        """Return the values of one place by their keys."""
        return {row.key: row.value for row in self.rows if row.place == place}

    def tables(self) -> list[Table]:
        """Return a table for each place that has figures with titles."""
        places = dict.fromkeys(row.place for row in self.rows if row.title)
        return [self._table(place) for place in places]

    def _table(self, place: Place) -> Table:
        rows = [row for row in self.rows if row.place == place and row.title]
        header = COMPARED_HEADER if isinstance(rows[0].value, Compared) else HEADER
        title = ", ".join(key for key in place if key not in GROUPS)
        return Table(header, [row.cells() for row in rows], title, "\n\n".join(self._notes(place)))

    def _notes(self, place: Place) -> list[str]:
        return [note for note in self.notes.get(place, ()) if note]

    def markdown(self) -> str:
        """Return the report as a page."""
        parts = [f"# {self.title}", "\n".join(f"- {_escaped(fact)}" for fact in self.facts)]
        for table in self.tables():
            ruler = ["---", *["--:"] * (len(table.header) - 1)]
            rows = [table.header, ruler, *table.texts()]
            parts += [f"## {_escaped(table.title)}"] if table.title else []
            parts.append("\n".join(f"| {' | '.join(map(_escaped, row))} |" for row in rows))
            parts.append(_escaped(table.note))
        return "\n\n".join(part for part in (*parts, self.ending) if part) + "\n"


def cell(value: Cell, digits: int = 3) -> str:
    """Format a value for a table; an interval is its mean."""
    if isinstance(value, Interval):
        value = value.mean
    if value is None:
        return MISSING
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    """Return a text that is neither HTML nor the end of a cell."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def to_json(value: Any) -> Any:
    """Return figures as JSON has them; intervals are rounded to five digits."""
    if isinstance(value, Interval):
        return value.to_dict()
    if isinstance(value, Compared):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: to_json(part) for key, part in value.items()}
    return value
