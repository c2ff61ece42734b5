"""Formats of a task: its data as table, lines or sentences, its answer as list, bold, rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pasta_lab.tasks.draw import Draw, wordings
from pasta_lab.tasks.task import Dependence, Split, Task, Unit

ORDINALS = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth")

FREE_LABEL, CHAIN_LABEL = "Each stands alone.", "Each builds on the last."
"""First sentence of an answer whose prompt has a deciding clause: how the answer reads the clause.

About one token in 250 depends on that clause, and it decides tokens that come late: the first
number of an item. A small model did not learn to decide without this sentence (``docs/log.md``).
The graders do not ask for it.
"""


class Format(StrEnum):
    """How the items of an answer are marked."""

    DOTS = "1."
    PARENTHESES = "1)"
    ORDINALS = "First,"
    BOLD = "bold"
    ROWS = "table row"
    SENTENCES = "plain"


def draw_format(draw: Draw) -> tuple[Format, str]:
    """Return a format and the sentence that asks for it."""
    form = draw.choice(tuple(Format))
    return form, draw.wording(wordings("formats", form.name.lower()))


def item(form: Format, index: int, name: str, body: str) -> str:
    match form:
        case Format.DOTS:
            return f"{index + 1}. {name}: {body}"
        case Format.PARENTHESES:
            return f"{index + 1}) {name}: {body}"
        case Format.ORDINALS:
            return f"{ORDINALS[index]}, {name}: {body}"
        case Format.BOLD:
            return f"**{name}**: {body}"
        case Format.ROWS:
            return f"| {name} | {body} |"
        case Format.SENTENCES:
            return f"For {name}: {body}"


def separator(form: Format) -> str:
    """Return the white space between two items."""
    return " " if form is Format.SENTENCES else "\n"


def added(start: int, value: int) -> str:
    """Return the steps of ``start + value``, each written ``a + b = c``.

    The tens are added before the ones: each step changes few digits, so that a small model can
    learn it and adds unseen numbers by steps that it has seen.
    """
    tens, ones = value // 10 * 10, value % 10
    parts = [part for part in (tens, ones) if part]
    steps = []
    for part in parts or [0]:
        steps.append(f"{start} + {part} = {start + part}")
        start += part
    return ", ".join(steps)


def summed(values: Iterable[int]) -> str:
    """Return the steps that add numbers one after the other, from the first on."""
    first, *others = values
    steps = []
    total = first
    for value in others:
        steps.append(added(total, value))
        total += value
    return ", ".join(steps)


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
            wording = draw.wording(wordings("records", "orders"))
            sentences = [*sentences, wording.format(names=", ".join(self.order))]
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
    """Write rows in a random layout: a table with a head, or a line for each record."""
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
