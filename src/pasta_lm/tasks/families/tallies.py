"""Sections with a figure worked out inside each, and a last line that may or may not need them.

Three closings over the same sections: words of the prompt (nothing is needed), the figures again,
or their sum. The first is the twin of both others: one clause of the prompt decides.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pasta_lm.tasks.arithmetic import summed
from pasta_lm.tasks.draw import Draw, Wordings
from pasta_lm.tasks.more_wordings import more_clauses, more_sentences
from pasta_lm.tasks.records import draw_records
from pasta_lm.tasks.task import Dependence, Fact, Task, Unit


class Closing(Enum):
    """What the last line says."""

    MOTTO = "words of the prompt"
    LIST = "the figures made in the sections"
    SUM = "the sum of these figures"


class Clauses(NamedTuple):
    """One wording of the last line, with and without need of the sections."""

    free: str
    sync: str


OPENINGS = Wordings(
    train=(
        "Below are {noun}s with three amounts each. The house is {house}, its motto is {motto}.",
        "Each {noun} has three amounts. They belong to the house {house} with the motto {motto}.",
        "The house {house} has the motto {motto}. Its {noun}s have three amounts each.",
        "Here are the {noun}s of the house {house}, three amounts each. The motto is {motto}.",
        "Three amounts are known for every {noun}. The house is {house}, the motto {motto}.",
        "These {noun}s come with three amounts. House: {house}. Motto: {motto}.",
        "House {house} (motto: {motto}) lists three amounts for each {noun}.",
        *more_sentences("tallies openings"),
    ),
    grammar="tallies openings",
    dev=("The {noun}s of house {house} have three amounts each. Motto: {motto}.",),
    test=(
        "Here are {noun}s with three amounts each. House: {house}. Its motto is {motto}.",
        "The house {house} lists its {noun}s, three amounts each. The motto is {motto}.",
        "Every {noun} below has three amounts. The house is {house} and the motto is {motto}.",
    ),
)

BODY = Wordings(
    train=(
        "Write a line about each {noun} with its total.",
        "Work out the total of every {noun} in a line of its own.",
        "For each {noun}, add the three amounts.",
        "Add up each {noun} on its own line.",
        "Give a line with the total for every {noun}.",
        "Each {noun} gets a line that adds its amounts.",
        "Add the amounts of each {noun} and give the total.",
        *more_sentences("body"),
    ),
    grammar="body",
    dev=("Add up the amounts of every {noun} in a line.",),
    test=(
        "Give every {noun} a line that works out its total.",
        "For every {noun}, add up the amounts in a line of its own.",
        "Work out each {noun} on its own line: add the three amounts.",
    ),
)

LISTED = Wordings(
    train=(
        Clauses("End with Overall and the motto.", "End with Overall and the totals."),
        Clauses(
            "The last line starts with Overall and names the house.",
            "The last line starts with Overall and names the totals.",
        ),
        Clauses(
            "Then repeat house and motto after the word Overall.",
            "Then repeat all totals after the word Overall.",
        ),
        Clauses(
            "Close with Overall: say whose {noun}s they are.",
            "Close with Overall: say which totals you found.",
        ),
        Clauses(
            "Finish with an Overall line about the house, not the totals.",
            "Finish with an Overall line about the totals, not the house.",
        ),
        Clauses(
            "At the end, under Overall, give the motto of the house.",
            "At the end, under Overall, give the totals of the {noun}s.",
        ),
        Clauses(
            "The word Overall opens the last line, which holds the motto.",
            "The word Overall opens the last line, which holds the totals.",
        ),
        Clauses(
            "Overall comes last and states house and motto, without the totals.",
            "Overall comes last and states the totals, without house and motto.",
        ),
        Clauses(
            "After that, Overall tells the reader the motto again.",
            "After that, Overall tells the reader the totals again.",
        ),
        Clauses(
            "Add a last line Overall with the house in it.",
            "Add a last line Overall with every total in it.",
        ),
        Clauses(
            "Close with a line that opens with Overall and gives the motto.",
            "Close with a line that opens with Overall and gives every total.",
        ),
        Clauses(
            "Overall is the last line: house and motto, no totals.",
            "Overall is the last line: all totals, no motto.",
        ),
        Clauses(
            "At the end, write Overall and whose {noun}s these are.",
            "At the end, write Overall and which totals there are.",
        ),
        Clauses(
            "The last line begins with Overall and states the motto.",
            "The last line begins with Overall and states each total.",
        ),
        Clauses(
            "In the end say the house again, after Overall.",
            "In the end say the totals again, after Overall.",
        ),
        Clauses("Add Overall: the house and its motto.", "Add Overall: the totals from above."),
        *more_clauses("listed", Clauses),
    ),
    grammar="listed",
    dev=(
        Clauses(
            "Finish with Overall and the house with its motto.",
            "Finish with Overall and the list of the totals.",
        ),
        Clauses(
            "The last line says Overall and repeats the motto.",
            "The last line says Overall and repeats the totals.",
        ),
    ),
    test=(
        Clauses(
            "Close with a line Overall that gives house and motto.",
            "Close with a line Overall that gives the totals.",
        ),
        Clauses(
            "At the end, repeat the motto after Overall, not the totals.",
            "At the end, repeat the totals after Overall, not the motto.",
        ),
        Clauses(
            "The last line opens with Overall and states the house.",
            "The last line opens with Overall and states all totals.",
        ),
    ),
)

SUMMED = Wordings(
    train=(
        Clauses("End with Overall and the motto.", "End with Overall and the grand total."),
        Clauses(
            "The last line starts with Overall and names the house.",
            "The last line starts with Overall and adds all totals.",
        ),
        Clauses(
            "Then repeat house and motto after the word Overall.",
            "Then add up all totals after the word Overall.",
        ),
        Clauses(
            "Close with Overall: say whose {noun}s they are.",
            "Close with Overall: say what they make together.",
        ),
        Clauses(
            "Finish with an Overall line about the house, no sum of the totals.",
            "Finish with an Overall line about the sum of the totals, not the house.",
        ),
        Clauses(
            "At the end, under Overall, give the motto of the house.",
            "At the end, under Overall, give the sum of all {noun}s.",
        ),
        Clauses(
            "The word Overall opens the last line, which holds the motto.",
            "The word Overall opens the last line, which holds the grand total.",
        ),
        Clauses(
            "Overall comes last and states house and motto, without a grand total.",
            "Overall comes last and states the grand total, without house and motto.",
        ),
        Clauses(
            "After that, Overall tells the reader the motto again.",
            "After that, Overall adds the totals together.",
        ),
        Clauses(
            "Add a last line Overall with the house in it.",
            "Add a last line Overall with the totals added up.",
        ),
        Clauses(
            "Close with a line that opens with Overall and gives the motto.",
            "Close with a line that opens with Overall and gives the sum of the totals.",
        ),
        Clauses(
            "Overall is the last line: house and motto, no sum.",
            "Overall is the last line: the grand total, no motto.",
        ),
        Clauses(
            "At the end, write Overall and whose {noun}s these are.",
            "At the end, write Overall and what the totals make in all.",
        ),
        Clauses(
            "The last line begins with Overall and states the motto.",
            "The last line begins with Overall and states the grand total.",
        ),
        Clauses(
            "In the end say the house again, after Overall.",
            "In the end add up the totals, after Overall.",
        ),
        Clauses("Add Overall: the house and its motto.", "Add Overall: all totals added together."),
        *more_clauses("summed", Clauses),
    ),
    grammar="summed",
    dev=(
        Clauses(
            "Finish with Overall and the house with its motto.",
            "Finish with Overall and the sum of the totals.",
        ),
        Clauses(
            "The last line says Overall and repeats the motto.",
            "The last line says Overall and adds up the totals.",
        ),
    ),
    test=(
        Clauses(
            "Close with a line Overall that gives house and motto.",
            "Close with a line Overall that gives the grand total.",
        ),
        Clauses(
            "At the end, repeat the motto after Overall, without the grand total.",
            "At the end, add all totals after Overall, without the motto.",
        ),
        Clauses(
            "The last line opens with Overall and states the house.",
            "The last line opens with Overall and states what all totals make together.",
        ),
    ),
)

NOUNS = (
    ("shop", "object"),
    ("stall", "food"),
    ("guest", "hobby"),
    ("room", "colour"),
    ("garden", "flower"),
)


def tallies(draw: Draw) -> Task:
    """Sections, then a line that repeats the figures made in them."""
    return _task(draw, Closing.LIST, LISTED)


def tallies_motto(draw: Draw) -> Task:
    """The same sections, then a line that needs only the prompt."""
    return _task(draw, Closing.MOTTO, LISTED)


def bills(draw: Draw) -> Task:
    """Several sub-totals, then a grand total."""
    return _task(draw, Closing.SUM, SUMMED)


def bills_motto(draw: Draw) -> Task:
    """The same sub-totals, then a line that needs only the prompt."""
    return _task(draw, Closing.MOTTO, SUMMED)


def _task(draw: Draw, closing: Closing, wordings: Wordings[Clauses]) -> Task:
    noun, kind = draw.choice(NOUNS)
    num = draw.count(high=7 if wordings is LISTED else 5)
    house, *names = draw.names(num + 1)
    motto = " and ".join(draw.words("quality", 3))
    goods = draw.words(kind, num)
    amounts = [draw.values(3, 11, 39) for _ in range(num)]
    rows: list[tuple[str | int, ...]] = [
        (n, g, *a) for n, g, a in zip(names, goods, amounts, strict=True)
    ]
    records = draw_records(draw, (noun, kind, "first", "second", "third"), rows)
    clauses = draw.wording(wordings)
    clause = clauses.free if closing is Closing.MOTTO else clauses.sync
    prompt = [draw.wording(OPENINGS), draw.wording(BODY), clause]
    units = [
        _section(name, good, given) for name, good, given in zip(names, goods, amounts, strict=True)
    ]
    units.append(_overall(closing, house, motto, [sum(given) for given in amounts]))
    asked = [sentence.format(noun=noun, house=house, motto=motto) for sentence in prompt]
    dependence = Dependence.FREE if closing is Closing.MOTTO else Dependence.SYNC
    return records.task(draw, asked, units, dependence)


def _section(name: str, good: str, amounts: list[int]) -> Unit:
    text = f"{name} stands for {good}. {summed(amounts)}. The total is {sum(amounts)}."
    facts = (Fact(good, ("stands",)), Fact(str(sum(amounts)), ("total",)))
    return Unit(text, name, name, facts)


def _overall(closing: Closing, house: str, motto: str, totals: list[int]) -> Unit:
    needs = frozenset(range(len(totals)))
    if closing is Closing.MOTTO:
        text = f"Overall, this is the house {house}, which is always {motto}."
        facts = (
            Fact(house, ("always",)),
            *(Fact(word, ("always",)) for word in motto.split(" and ")),
        )
        needs = frozenset()
    elif closing is Closing.LIST:
        text = f"Overall, the totals are {', '.join(map(str, totals))}."
        facts = tuple(Fact(str(total), ("totals are",)) for total in totals)
    else:
        text = f"Overall: {summed(totals)}. The grand total is {sum(totals)}."
        facts = (Fact(str(sum(totals)), ("grand total",)),)
    return Unit(text, "Overall", "Overall", facts, needs, fork=False, weight=len(totals) / 2)
