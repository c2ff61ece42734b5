"""The data of a prompt: records written as a table, as lines or as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pasta_lm.tasks.draw import Draw
from pasta_lm.tasks.task import Dependence, Task, Unit

Cell = str | int


@dataclass(frozen=True, slots=True)
class Records:
    """Records as they stand in a prompt.

    Attributes:
        text: The whole, lines joined.
        cells: Every cell but those of the first column, as text.
    """

    text: str
    cells: frozenset[str]

    def task(
        self,
        draw: Draw,
        sentences: Sequence[str],
        units: Sequence[Unit],
        dependence: Dependence,
        *,
        ordered: bool = False,
    ) -> Task:
        """Return the task that asks these sentences about these records.

        The data stand after the first sentence (what they are) or after all of them, by chance.
        ``family``, ``id`` and ``pair`` are filled in by the registry.
        """
        first, *others = sentences
        if draw.choice((True, False)):
            prompt = f"{first}\n{self.text}\n{' '.join(others)}"
        else:
            prompt = f"{' '.join(sentences)}\n{self.text}"
        return Task(
            id="",
            family="",
            split=draw.split,
            prompt=prompt,
            units=tuple(units),
            records=self.text,
            candidates=self.cells,
            dependence=dependence,
            ordered=ordered,
            drawn=frozenset(draw.drawn),
        )


def draw_records(draw: Draw, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Records:
    """Write rows in a layout drawn by chance: a table with a head, or a line for each record.

    Args:
        draw: The source of chance.
        columns: Names of the columns, the record's own name first.
        rows: One cell for each column.
    """
    as_table = draw.choice((True, False))
    lines = [" | ".join(columns)] if as_table else []
    for row in rows:
        name, *values = [str(cell) for cell in row]
        pairs = zip(columns[1:], values, strict=True)
        fields = ", ".join(f"{column} {value}" for column, value in pairs)
        lines.append(" | ".join((name, *values)) if as_table else f"{name}: {fields}")
    cells = frozenset(str(cell) for row in rows for cell in row[1:])
    return Records("\n".join(lines), cells)


def write_lines(rows: Sequence[Sequence[Cell]]) -> Records:
    """Write rows of any length, a line each: the record's name, then its cells."""
    lines = [f"{name}: {', '.join(map(str, cells))}" for name, *cells in rows]
    return Records("\n".join(lines), frozenset(str(cell) for row in rows for cell in row[1:]))
