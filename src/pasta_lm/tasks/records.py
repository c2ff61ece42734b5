"""The data of a prompt: records written as a table, as lines or as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pasta_lm.tasks.draw import Draw, Wordings
from pasta_lm.tasks.more_wordings import more_sentences
from pasta_lm.tasks.task import Dependence, Split, Task, Unit

Cell = str | int
T = TypeVar("T", bound=Sequence[Cell])

SHUFFLED = {Split.TRAIN: 0.5, Split.DEV: 0.3, Split.TEST: 0.3, Split.HARD: 0.3}
"""Share of prompts whose records stand in another order than the answer, which the prompt states.

Without them the record of a unit is always the next one, and a model learns to count, not to find.
"""

ORDERS = Wordings(
    train=(
        "Take them in this order: {names}.",
        "Go in this order: {names}.",
        "The order of the answer is {names}.",
        "Answer in the order {names}.",
        "Keep to this order: {names}.",
        "From first to last: {names}.",
        *more_sentences("orders"),
    ),
    grammar="orders",
    dev=("Follow this order: {names}.",),
    test=(
        "Answer in this order: {names}.",
        "Take them in the order {names}.",
        "The order to keep is {names}.",
    ),
)


@dataclass(frozen=True, slots=True)
class Records:
    """Records as they stand in a prompt.

    Attributes:
        text: The whole, lines joined.
        cells: Every cell but those of the first column, as text.
        order: The records' names in the order of the answer, where it is another than theirs.
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
        """Return the task that asks these sentences about these records.

        The data stand after the first sentence (what they are) or after all of them, by chance.
        Where the records stand in another order than the units, a sentence more says so.
        ``family``, ``id`` and ``pair`` are filled in by the registry.
        """
        if self.order and {*self.order} <= {unit.anchor for unit in units}:
            sentences = [*sentences, draw.wording(ORDERS).format(names=", ".join(self.order))]
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
    """Write rows in a layout drawn by chance: a table with a head, or a line for each record.

    Args:
        draw: The source of chance.
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
    """Write rows of any length, a line each: the record's name, then its cells."""
    rows, order = _arranged(draw, rows)
    lines = [f"{name}: {', '.join(map(str, cells))}" for name, *cells in rows]
    cells = frozenset(str(cell) for row in rows for cell in row[1:])
    return Records("\n".join(lines), cells, order)


def _arranged(draw: Draw, rows: Sequence[T]) -> tuple[Sequence[T], tuple[str, ...]]:
    """Return rows as they stand in the prompt and, if not in their order, their names in it."""
    if draw.random.random() >= SHUFFLED[draw.split]:
        return rows, ()
    mixed = draw.random.sample(rows, len(rows))
    return mixed, tuple(str(row[0]) for row in rows) if mixed != [*rows] else ()
