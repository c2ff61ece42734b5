"""Sections with a figure worked out in each, and a last line that may or may not need them.

The same sections have three closings: words of the prompt, which need no section, the figures
again, or their sum. The first is the pair partner of each of the others: one clause decides.
"""

from __future__ import annotations

from enum import Enum

from pasta_lm.tasks.draw import Draw
from pasta_lm.tasks.formats import draw_records, summed
from pasta_lm.tasks.task import Dependence, Fact, Task, Unit
from pasta_lm.tasks.wordings import wordings


class Closing(Enum):
    """The content of the last line."""

    MOTTO = "words of the prompt"
    LIST = "the figures of the sections"
    SUM = "the sum of these figures"


NOUNS = {"shop": "object", "stall": "food", "guest": "hobby", "room": "colour", "garden": "flower"}
"""What has the amounts, and the kind of word that it stands for."""


def tallies(draw: Draw) -> Task:
    """Sections, then a line that repeats their figures."""
    return _task(draw, Closing.LIST, "listed")


def tallies_motto(draw: Draw) -> Task:
    """The same sections, then a line that needs the prompt alone."""
    return _task(draw, Closing.MOTTO, "listed")


def bills(draw: Draw) -> Task:
    """Several sub-totals, then a grand total."""
    return _task(draw, Closing.SUM, "summed")


def bills_motto(draw: Draw) -> Task:
    """The same sub-totals, then a line that needs the prompt alone."""
    return _task(draw, Closing.MOTTO, "summed")


def _task(draw: Draw, closing: Closing, clauses: str) -> Task:
    noun, kind = draw.choice(tuple(NOUNS.items()))
    num = draw.count(high=7 if clauses == "listed" else 5)
    house, *names = draw.names(num + 1)
    motto = " and ".join(draw.words("quality", 3))
    goods = draw.words(kind, num)
    amounts = [draw.values(3, 11, 39) for _ in range(num)]
    rows: list[tuple[str | int, ...]] = [
        (n, g, *a) for n, g, a in zip(names, goods, amounts, strict=True)
    ]
    records = draw_records(draw, (noun, kind, "first", "second", "third"), rows)
    side = int(closing is not Closing.MOTTO)
    clause = draw.wording(wordings("tallies", clauses), side)
    opening, body = (draw.wording(wordings("tallies", place)) for place in ("openings", "body"))
    units = [
        _section(name, good, given) for name, good, given in zip(names, goods, amounts, strict=True)
    ]
    units.append(_overall(closing, house, motto, [sum(given) for given in amounts]))
    asked = [
        sentence.format(noun=noun, house=house, motto=motto) for sentence in (opening, body, clause)
    ]
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
