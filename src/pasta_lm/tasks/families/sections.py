"""Sections about records, one each: profiles, products, weather and match reports.

Nothing of a section depends on another, whether headings mark them, or nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pasta_lm.tasks.draw import Draw, Wordings
from pasta_lm.tasks.more_wordings import more_sentences
from pasta_lm.tasks.records import draw_records
from pasta_lm.tasks.task import Dependence, Fact, Task, Unit

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """What records are about.

    Attributes:
        noun: What a record is.
        columns: Names of the columns behind the record's name.
        kinds: Where each column's cells come from: a kind of word, 'name' or 'number'.
        sentences: A record in words; the cells stand as {0}, {1} and so on behind {name}.
        cues: For each column a word of its sentence that the record itself does not have.
    """

    noun: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    sentences: str
    cues: tuple[str, ...]


DOMAINS = (
    Domain(
        "person",
        ("job", "trait", "hobby", "pet"),
        ("job", "quality", "hobby", "animal"),
        "{name} works as {0} and is known to be {1}. In the evening {name} enjoys {2}, and at home "
        "lives a tame {3}.",
        ("works", "known", "enjoys", "tame"),
    ),
    Domain(
        "product",
        ("material", "colour", "price", "buyer"),
        ("material", "colour", "number", "job"),
        "{name} is made of {0} and comes in {1}. It costs {2} coins in the shop, and the typical "
        "customer is a {3}.",
        ("made", "comes", "costs", "customer"),
    ),
    Domain(
        "city",
        ("morning", "evening", "high", "low"),
        ("weather", "weather", "number", "number"),
        "{name} wakes up to {0} skies and goes to bed under {1} ones. It gets up to {2} degrees by "
        "day and down to {3} degrees by night.",
        ("wakes", "bed", "gets", "night"),
    ),
    Domain(
        "team",
        ("rival", "points", "crowd", "mascot"),
        ("name", "number", "number", "animal"),
        "{name} played at home against {0} and scored {1} goals. There were {2} people watching, "
        "and the {3} danced after the game.",
        ("against", "scored", "watching", "danced"),
    ),
)

OPENINGS = Wordings(
    train=(
        "Here is a list: {noun}, {columns}.",
        "Below, each {noun} comes with {columns}.",
        "These are the data, one {noun} a line, with {columns}.",
        "For each {noun} we know {columns}.",
        "The records give {columns} of each {noun}.",
        "You get one {noun} per line with {columns}.",
        "Look at each {noun} and at {columns}.",
        *more_sentences("sections openings"),
    ),
    grammar="sections openings",
    dev=("Here each {noun} is listed with {columns}.",),
    test=(
        "The list below has one {noun} per line with {columns}.",
        "Here are the data of each {noun}: {columns}.",
        "Each {noun} below comes with a record of {columns}.",
    ),
)

SECTIONS = Wordings(
    train=(
        "Write a section about each {noun} under a heading.",
        "Give each {noun} a heading and a short text.",
        "Put a heading over every {noun} and describe it.",
        "Describe every {noun} in a section of its own with a heading.",
        "Make sections with headings, one for each {noun}.",
        "Each {noun} gets a heading and two sentences.",
        "Use a heading for every {noun} and write about it.",
        "Under one heading for each {noun}, say what is known.",
        *more_sentences("sections"),
    ),
    grammar="sections",
    dev=("Write two sentences about each {noun} under a heading.",),
    test=(
        "Give every {noun} a section with a heading.",
        "Write about each {noun} in a section with a heading of its own.",
        "Describe each {noun} under a heading.",
    ),
)

RUNNING_TEXT = Wordings(
    train=(
        "Write about all of them in one paragraph, without headings.",
        "Describe each {noun} in running text without any marks.",
        "Make one paragraph of it, no list and no headings.",
        "Use one paragraph of running text for every {noun}.",
        "No headings and no list: describe each {noun} in one paragraph.",
        "Tell about every {noun} one after the other in a single paragraph.",
        "Write a single paragraph about each {noun} in turn, nothing marked.",
        "Running text only: say what is known of each {noun}.",
        *more_sentences("running text"),
    ),
    grammar="running text",
    dev=("Write running text about each {noun}, no headings.",),
    test=(
        "Describe every {noun} in a single paragraph, no list.",
        "Write one paragraph of running text about each {noun}, without headings.",
        "Make running text of it: each {noun} in one paragraph.",
    ),
)

SINGLE = Wordings(
    train=(
        "Write only about {name}.",
        "Describe {name} and no other {noun}.",
        "Say what is known of {name}, leave out the rest.",
        "Tell about {name} alone.",
        "We only need the {noun} {name}: describe it.",
        "Only {name} is wanted. Write about it.",
        "Leave out every other {noun} and describe {name}.",
        "Which facts do we have about {name}? Write about this {noun} alone.",
        *more_sentences("single"),
    ),
    grammar="single",
    dev=("Tell what is known about {name} only.",),
    test=(
        "Describe only {name}.",
        "Write about {name} alone and leave out the rest.",
        "Say what we know of {name}, no other {noun} is wanted.",
    ),
)


def profiles(draw: Draw) -> Task:
    """Independent sections under headings."""
    return _described(draw, SECTIONS, lambda name, text: f"## {name}\n{text}", "\n\n")


def plain_chunks(draw: Draw) -> Task:
    """Independent chunks that no list or paragraph marks."""
    return _described(draw, RUNNING_TEXT, lambda _name, text: text, " ")


def single_answer(draw: Draw) -> Task:
    """One record of several is asked for: a single paragraph that stays sequential."""
    domain, rows = draw_rows(draw, draw.count(low=2, high=6))
    row = draw.choice(rows)
    asked = draw.wording(SINGLE).format(name=row[0], noun=domain.noun)
    unit = Unit(describe(domain, row), row[0], row[0], facts_of(domain, row), fork=False)
    return _records_task(draw, domain, rows, asked, [unit], Dependence.SHORT)


def draw_rows(draw: Draw, num: int) -> tuple[Domain, list[Row]]:
    """Return a domain and records of it, all cells of a column different."""
    domain = draw.choice(DOMAINS)
    # Names for records and cells come from one draw: none begins as another does.
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
    """Return what is said of a record."""
    name, *cells = row
    return domain.sentences.format(*cells, name=name)


def facts_of(domain: Domain, row: Row) -> tuple[Fact, ...]:
    """Return what must be said of a record."""
    return tuple(Fact(cell, (cue,)) for cell, cue in zip(row[1:], domain.cues, strict=True))


def _described(
    draw: Draw, wordings: Wordings[str], shape: Callable[[str, str], str], before: str
) -> Task:
    domain, rows = draw_rows(draw, draw.count())
    asked = draw.wording(wordings).format(noun=domain.noun)
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
    return _records_task(draw, domain, rows, asked, units, Dependence.FREE)


def _records_task(
    draw: Draw,
    domain: Domain,
    rows: list[Row],
    asked: str,
    units: list[Unit],
    dependence: Dependence,
) -> Task:
    *columns, last = domain.columns
    named = f"{', '.join(columns)} and {last}"
    opening = draw.wording(OPENINGS).format(noun=domain.noun, columns=named)
    records = draw_records(draw, (domain.noun, *domain.columns), rows)
    return records.task(draw, [opening, asked], units, dependence)
