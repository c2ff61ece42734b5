"""Drills: single cells of records asked for, and what a clause means, learned before the tasks.

In a task one token in dozens must be found by a name, and one in a hundred depends on the clause
that says whether items depend on one another; in a drill one in eight, and one in four. What asks
for little at a time is learned while attention is still soft (``docs/log.md``). The words and the
sentences are those of the training split, and no grader reads the answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from pasta_lm.tasks.draw import Draw
from pasta_lm.tasks.formats import CHAIN_LABEL, FREE_LABEL
from pasta_lm.tasks.records import Cell
from pasta_lm.tasks.registry import make
from pasta_lm.tasks.task import Split
from pasta_lm.tasks.wordings import word_lists, wordings

MOST_QUESTIONS = 12
SEPARATORS = (". ", "\n", "; ")
WHOLE_RECORDS = 0.3
"""Share of drills whose answer is whole records rather than single cells."""
NAMES = 0.6
"""Share of drills whose records have a name; those of the others are words, invented or not."""
NUMBERED = 0.3
"""Share of drills whose answers are numbered, so that no line begins with what is to be found."""
NUMBERS = 0.4
"""Share of columns that hold numbers."""
CLAUSES: tuple[tuple[str, str, str], ...] = (
    ("takings", "takings", "running_takings"),
    ("journeys", "legs", "route"),
    ("notes", "numbered_apart", "numbered_on"),
    ("prices", "as_given", "as_above"),
    ("exchanges", "lookups", "substitutions"),
)
"""Clauses that decide, and the family on either side."""
ALONE, WITH_RECORDS = 0.6, 0.2
"""Share of those drills that show the clause alone, and of those that show a whole prompt."""


@dataclass(frozen=True, slots=True)
class Drill:
    """A prompt and the answer to it, both plain text."""

    prompt: str
    answer: str


def drill(seed: int, *, most_records: int = 8, most_columns: int = 5) -> Drill:
    """Draw the drill of a seed.

    Args:
        seed: The same seed gives the same drill.
        most_records: At least 2 are drawn.
        most_columns: At least 1 beside the names.
    """
    draw = Draw(Split.TRAIN, f"drill/{seed}")
    num_records = draw.random.randint(2, most_records)
    kind, *kinds = draw.random.sample(
        sorted(word_lists()), 1 + draw.random.randint(1, most_columns)
    )
    is_name = draw.random.random() < NAMES
    names = draw.names(num_records) if is_name else draw.words(kind, num_records)
    columns = [_column(draw, kind, num_records) for kind in kinds]
    heads = [draw.choice((kind, draw.invented(1)[0])) for kind in kinds]
    rows = [(name, *cells) for name, *cells in zip(names, *columns, strict=True)]
    asked = _whole if draw.random.random() < WHOLE_RECORDS else _cells
    answers = asked(draw, heads, rows)
    if draw.random.random() < NUMBERED:
        answers = [f"Step {number}: {answer}" for number, answer in enumerate(answers, 1)]
    return Drill(
        _table(heads, rows) if draw.choice((True, False)) else _lines(heads, rows),
        draw.choice(SEPARATORS).join(answers),
    )


def clause_drill(seed: int) -> Drill:
    """Draw a drill about a clause, alone or in a prompt: the answer is the preface of its side."""
    draw = Draw(Split.TRAIN, f"clause/{seed}")
    clauses, *families = draw.choice(CLAUSES)
    side = draw.choice((0, 1))
    shown = draw.random.random()
    if shown < ALONE:
        prompt = draw.wording(wordings(clauses, "clauses"), side)
    else:
        task = make(families[side], Split.TRAIN, seed, max_records=3)
        is_whole = shown < ALONE + WITH_RECORDS
        prompt = task.prompt if is_whole else task.prompt.replace(task.records, "").strip()
    return Drill(prompt, (FREE_LABEL, CHAIN_LABEL)[side])


def _column(draw: Draw, kind: str, number: int) -> list[Cell]:
    if draw.random.random() < NUMBERS:
        return list(draw.values(number))
    return list(draw.words(kind, number))


def _table(heads: list[str], rows: list[tuple[Cell, ...]]) -> str:
    lines = [("name", *heads), *rows]
    return "\n".join(" | ".join(map(str, line)) for line in lines)


def _lines(heads: list[str], rows: list[tuple[Cell, ...]]) -> str:
    pairs = [(name, zip(heads, cells, strict=True)) for name, *cells in rows]
    return "\n".join(
        f"{name}: {', '.join(f'{head} {cell}' for head, cell in fields)}" for name, fields in pairs
    )


def _whole(draw: Draw, _: list[str], rows: list[tuple[Cell, ...]]) -> list[str]:
    return [" ".join(map(str, row)) for row in draw.random.sample(rows, len(rows))]


def _cells(draw: Draw, heads: list[str], rows: list[tuple[Cell, ...]]) -> list[str]:
    cells = [
        f"{name} {head} {cell}"
        for name, *found in rows
        for head, cell in zip(heads, found, strict=True)
    ]
    return draw.random.sample(cells, min(MOST_QUESTIONS, len(cells)))
