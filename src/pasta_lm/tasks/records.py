"""Write the records of a prompt as a table or as lines, and put the prompt together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pasta_lm.tasks.draw import Draw
from pasta_lm.tasks.task import Dependence, Split, Task, Unit
from pasta_lm.tasks.wordings import wordings

Cell = str | int
T = TypeVar("T", bound=Sequence[Cell])

SHUFFLED = {Split.TRAIN: 0.5, Split.DEV: 0.3, Split.TEST: 0.3, Split.HARD: 0.3}
"""Share of prompts whose records are in another order than the answer; the prompt states it.

Without them the record of a unit is always the next one: a model would learn to count, not to look
up.
"""


@dataclass(frozen=True, slots=True)
class Records:
    """Records as they stand in a prompt.

    Attributes:
        text: All lines.
        cells: Every cell except those of the first column.
        order: The names of the records in the order of the answer; empty: it is the same.
    """

    text: str
    cells: frozenset[str]
    order: tuple[str, ...] = ()

    def task(
        self,
        draw: Draw,
        sentences: Sequence[str],
        units: Sequence[Unit],
        dependence: Dependence,
        *,
        preface: str = "",
        ordered: bool = False,
    ) -> Task:
        """Return the task of a prompt with these sentences and these records.

        The records follow either the first sentence, which introduces them, or the last one.
        Another sentence states the order of the units if it is not that of the records. The
        registry fills in ``family``, ``id`` and ``pair``.
        """
        if self.order and {*self.order} <= {unit.anchor for unit in units}:
            asked = draw.wording(wordings("records", "orders"))
            sentences = [*sentences, asked.format(names=", ".join(self.order))]
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
            preface=preface,
            ordered=ordered,
            drawn=frozenset(draw.drawn),
        )


def draw_records(draw: Draw, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Records:
    """Write rows in a random layout: a table with a head, or a line for each record.

    Args:
        draw: The random choices of the task.
        columns: Names of the columns, the record's own name first.
        rows: One cell for each column.
    """
    rows, order = _arranged(draw, rows)
    as_table = draw.choice((True, False))
    lines = [" | ".join(columns)] if as_table else []
    for row in rows:
        name, *values = [str(cell) for cell in row]
        pairs = zip(columns[1:], values, strict=True)
        fields = ", ".join(f"{column} {value}" for column, value in pairs)
        lines.append(" | ".join((name, *values)) if as_table else f"{name}: {fields}")
    cells = frozenset(str(cell) for row in rows for cell in row[1:])
    return Records("\n".join(lines), cells, order)


def write_lines(draw: Draw, rows: Sequence[Sequence[Cell]]) -> Records:
    """Write rows of any length, one a line: the name of the record, then its cells."""
    rows, order = _arranged(draw, rows)
    lines = [f"{name}: {', '.join(map(str, cells))}" for name, *cells in rows]
    cells = frozenset(str(cell) for row in rows for cell in row[1:])
    return Records("\n".join(lines), cells, order)


def _arranged(draw: Draw, rows: Sequence[T]) -> tuple[Sequence[T], tuple[str, ...]]:
    """Return the rows as the prompt has them and, if they were shuffled, the names in order."""
    if draw.random.random() >= SHUFFLED[draw.split]:
        return rows, ()
    mixed = draw.random.sample(rows, len(rows))
    return mixed, tuple(str(row[0]) for row in rows) if mixed != [*rows] else ()
