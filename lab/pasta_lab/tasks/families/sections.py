"""A section for each record: profiles, products, weather and match reports.

No section depends on another, whether headings mark them or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from pasta_lab.tasks.draw import Draw, read_data, wordings
from pasta_lab.tasks.formats import draw_records
from pasta_lab.tasks.task import Dependence, Fact, Task, Unit

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """The subject of records.

    Attributes:
        noun: The kind of thing that a record describes.
        columns: Names of the columns after the record's name.
        kinds: Source of each column's cells: a kind of word, 'name' or 'number'.
        sentences: The text of a section, with {name} for the record's name and {0}, {1} and so on
            for its cells.
        cues: For each column a word of its sentence that the record does not contain.
    """

    noun: str
    columns: Sequence[str]
    kinds: Sequence[str]
    sentences: str
    cues: Sequence[str]


@cache
def domains() -> tuple[Domain, ...]:
    return tuple(Domain(**fields) for fields in read_data("sections")["domains"])


def profiles(draw: Draw) -> Task:
    """Independent sections under headings."""
    return _described(draw, "sections", lambda name, text: f"## {name}\n{text}", "\n\n")


def plain_chunks(draw: Draw) -> Task:
    """Independent texts that no list or paragraph marks."""
    return _described(draw, "running_text", lambda _name, text: text, " ")


def single_answer(draw: Draw) -> Task:
    """One record of several is asked for: a single paragraph that stays sequential."""
    domain, rows = draw_rows(draw, draw.count(low=2, high=6))
    row = draw.choice(rows)
    request = draw.wording(wordings("sections", "single")).format(name=row[0], noun=domain.noun)
    unit = Unit(describe(domain, row), row[0], row[0], facts_of(domain, row), fork=False)
    return _records_task(draw, domain, rows, request, [unit], Dependence.SHORT)


def draw_rows(draw: Draw, num: int) -> tuple[Domain, list[Row]]:
    """Return a domain and records of it; the cells of a column all differ."""
    domain = draw.choice(domains())
    # One draw for all names, of records and of cells: no two begin with the same letters.
    names = iter(draw.names(num * (1 + domain.kinds.count("name"))))
    columns: list[Sequence[str]] = [[next(names) for _ in range(num)]]
    words: dict[str, list[str]] = {}
    for kind in sorted({*domain.kinds} - {"name", "number"}):
        words[kind] = draw.words(kind, num * domain.kinds.count(kind))
    numbers = [str(value) for value in draw.values(num * domain.kinds.count("number"))]
    for kind in domain.kinds:
        if kind == "name":
            columns.append([next(names) for _ in range(num)])
        elif kind == "number":
            columns.append([numbers.pop() for _ in range(num)])
        else:
            columns.append([words[kind].pop() for _ in range(num)])
    return domain, [tuple(row) for row in zip(*columns, strict=True)]


def describe(domain: Domain, row: Row) -> str:
    name, *cells = row
    return domain.sentences.format(*cells, name=name)


def facts_of(domain: Domain, row: Row) -> tuple[Fact, ...]:
    """Return the facts that a section must state."""
    return tuple(Fact(cell, (cue,)) for cell, cue in zip(row[1:], domain.cues, strict=True))


def _described(draw: Draw, place: str, shape: Callable[[str, str], str], before: str) -> Task:
    domain, rows = draw_rows(draw, draw.count())
    request = draw.wording(wordings("sections", place)).format(noun=domain.noun)
    units = [
        Unit(
            shape(row[0], describe(domain, row)),
            row[0],
            row[0],
            facts_of(domain, row),
            before=before,
        )
        for row in rows
    ]
    return _records_task(draw, domain, rows, request, units, Dependence.FREE)


def _records_task(
    draw: Draw,
    domain: Domain,
    rows: list[Row],
    request: str,
    units: list[Unit],
    dependence: Dependence,
) -> Task:
    *columns, last = domain.columns
    named = f"{', '.join(columns)} and {last}"
    wording = draw.wording(wordings("sections", "openings"))
    opening = wording.format(noun=domain.noun, columns=named)
    records = draw_records(draw, (domain.noun, *domain.columns), rows)
    return records.task(draw, [opening, request], units, dependence)
