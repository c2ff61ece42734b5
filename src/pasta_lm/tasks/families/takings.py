"""Takings of shops: each on its own, or a running total over all shops above.

The two families are the sides of a minimal pair: one clause of the prompt decides.
"""

from __future__ import annotations

from typing import NamedTuple

from pasta_lm.tasks.arithmetic import summed
from pasta_lm.tasks.draw import Draw, Wordings
from pasta_lm.tasks.formats import draw_format, item, separator
from pasta_lm.tasks.more_wordings import more_clauses, more_sentences
from pasta_lm.tasks.prefaces import preface
from pasta_lm.tasks.records import draw_records
from pasta_lm.tasks.task import Dependence, Fact, Task, Unit


class Clauses(NamedTuple):
    """One wording with both of its sides."""

    free: str
    chain: str


OPENINGS = Wordings(
    train=(
        "Below are the takings of some shops, morning and afternoon.",
        "These shops took money in the morning and in the afternoon.",
        "Here is what each shop took in the morning and in the afternoon.",
        "The list gives the takings of shops for morning and afternoon.",
        "Each of these shops took money twice, morning and afternoon.",
        "For some shops, the money of the morning and of the afternoon is given.",
        "The shops of the street and what they took, morning and afternoon.",
        *more_sentences("takings openings"),
    ),
    grammar="takings openings",
    dev=("The shops below took money in the morning and afternoon.",),
    test=(
        "Here are shops with the takings of the morning and the afternoon.",
        "The takings of these shops are given for morning and afternoon.",
    ),
)

CLAUSES = Wordings(
    train=(
        Clauses("Give the takings of each shop.", "Give the takings including all shops above."),
        Clauses(
            "Add up the day of each shop on its own.", "Add up the days, each with the shops above."
        ),
        Clauses(
            "Work out a total for every shop alone.",
            "Work out a running total from shop to shop.",
        ),
        Clauses(
            "For each shop, state its total without the shops before it.",
            "For each shop, state its total with the shops before it.",
        ),
        Clauses(
            "Start again from zero at every shop.",
            "Carry the total on from shop to shop.",
        ),
        Clauses(
            "Say what each shop took, leaving out the other shops.",
            "Say what the shops took so far, up to each shop.",
        ),
        Clauses(
            "Write the day's total of each shop separately.",
            "Write the total so far at each shop, the earlier ones included.",
        ),
        Clauses(
            "Every figure is for one shop only.",
            "Every figure includes the figures before it.",
        ),
        Clauses(
            "Give a total for each shop, without those above.",
            "Give a total for each shop, with those above.",
        ),
        Clauses(
            "Work out every shop on its own.", "Work out every shop together with the earlier ones."
        ),
        Clauses("Begin at zero for each shop.", "Go on from the shop above each time."),
        Clauses(
            "Add only the two figures of the shop itself.",
            "Add the two figures of the shop to the total so far.",
        ),
        Clauses(
            "State the day of each shop separately, not added to the others.",
            "State the days added up, one shop after the other.",
        ),
        Clauses("No shop counts those above.", "Every shop counts those above too."),
        Clauses(
            "Count morning and afternoon of every shop alone.",
            "Count morning and afternoon of every shop and the shops before it.",
        ),
        Clauses(
            "The totals are separate: one shop each.",
            "The totals grow: each carries on from the shop above.",
        ),
        *more_clauses("takings", Clauses),
    ),
    grammar="takings",
    dev=(
        Clauses(
            "State the total of each shop alone.",
            "State the running total at each shop.",
        ),
        Clauses(
            "Count each shop on its own, without those above.",
            "Count each shop together with those above.",
        ),
    ),
    test=(
        Clauses(
            "Work out the takings of every shop separately.",
            "Work out the takings of every shop including those above.",
        ),
        Clauses(
            "Give each shop its own total, starting from zero.",
            "Give each shop the total so far, carried on from above.",
        ),
        Clauses(
            "Add up each shop without the earlier shops.",
            "Add up each shop with the earlier shops.",
        ),
    ),
)


def takings(draw: Draw) -> Task:
    """Independent computations: each shop's own total."""
    return _task(draw, is_chain=False)


def running_takings(draw: Draw) -> Task:
    """A dependent list: each total includes all shops above."""
    return _task(draw, is_chain=True)


def _task(draw: Draw, *, is_chain: bool) -> Task:
    shops = draw.names(draw.count(high=7))
    mornings, afternoons = draw.values(len(shops), 11, 59), draw.values(len(shops), 11, 59)
    rows = list(zip(shops, mornings, afternoons, strict=True))
    records = draw_records(draw, ("shop", "morning", "afternoon"), rows)
    form, request = draw_format(draw)
    clauses = draw.wording(CLAUSES)
    prompt = [draw.wording(OPENINGS), clauses.chain if is_chain else clauses.free, request]
    units: list[Unit] = []
    total = 0
    for index, (shop, morning, afternoon) in enumerate(rows):
        needs_last = is_chain and index > 0
        addends = (total, morning, afternoon) if needs_last else (morning, afternoon)
        total = sum(addends)
        units.append(
            Unit(
                text=item(form, index, shop, f"{summed(addends)}. The takings are {total}."),
                anchor=shop,
                topic=shop,
                facts=(Fact(str(total), ("takings",)),),
                needs=frozenset({index - 1}) if needs_last else frozenset(),
                fork=not is_chain,
                before=separator(form),
            )
        )
    dependence = Dependence.CHAIN if is_chain else Dependence.FREE
    says = preface(is_chain=is_chain, separator=separator(form))
    return records.task(draw, prompt, units, dependence, preface=says, ordered=is_chain)
