"""Prices that are so much more than a given one, or than the one above."""

from __future__ import annotations

from typing import NamedTuple

from pasta_lm.tasks.arithmetic import added
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
        "Each seller has two goods and a surcharge. The base price is {base}.",
        "Below are sellers, their goods and their surcharges. The base is {base}.",
        "The base price is {base}. Every seller asks for a surcharge.",
        "Sellers and goods are listed with a surcharge. The price to begin with is {base}.",
        "We begin with the base price {base}. Each seller has goods and a surcharge.",
        "For every seller you see two goods and a surcharge, the base price is {base}.",
        "The list has sellers with goods and surcharges. Base price: {base}.",
        *more_sentences("prices openings"),
    ),
    grammar="prices openings",
    dev=("Every seller below has two goods and a surcharge on the base price {base}.",),
    test=(
        "Each seller is listed with goods and a surcharge. The base price is {base}.",
        "Here are sellers with two goods and a surcharge. Base price: {base}.",
        "The base is {base}. For every seller the list has goods and a surcharge.",
    ),
)

CLAUSES = Wordings(
    train=(
        Clauses(
            "Each price is the base plus the surcharge.",
            "Each price is the one above plus the surcharge.",
        ),
        Clauses(
            "Add every surcharge to the base price.",
            "Add every surcharge to the price of the seller above.",
        ),
        Clauses(
            "All sellers start from the base price.",
            "Each seller starts from the price above, the first from the base.",
        ),
        Clauses(
            "The surcharge always counts from the base.",
            "The surcharge always counts from the price as above.",
        ),
        Clauses(
            "Work out each price from the base, not from the seller above.",
            "Work out each price from the seller above, not from the base.",
        ),
        Clauses(
            "Every seller takes the base price and adds a surcharge.",
            "Every seller takes the price as above and adds a surcharge.",
        ),
        Clauses(
            "Take the base each time and add what the seller asks.",
            "Take the last price each time and add what the seller asks.",
        ),
        Clauses(
            "No price depends on another: base plus surcharge.",
            "Every price depends on the last: price above plus surcharge.",
        ),
        Clauses(
            "The prices have the same base each time.",
            "The prices grow from seller to seller.",
        ),
        Clauses(
            "Give the price of each seller, starting from the base again.",
            "Give the price of each seller, going on from the one above.",
        ),
        Clauses(
            "Begin with the base price at each seller.", "Begin with the last price at each seller."
        ),
        Clauses(
            "The surcharge is added to the base, never to the price above.",
            "The surcharge is added to the price above, not to the base.",
        ),
        Clauses(
            "Each seller adds the surcharge to the same base.",
            "Each seller adds the surcharge to what the one above asks.",
        ),
        Clauses(
            "Go back to the base price for each seller.",
            "Go on from the last price for each seller.",
        ),
        Clauses(
            "Base and surcharge make the price, each time again.",
            "The last price and the surcharge make the price, each time.",
        ),
        Clauses(
            "Every seller starts again from the base.",
            "Every seller starts from the price of the one above.",
        ),
        Clauses(
            "Give all prices, each from the base alone.",
            "Give all prices, each going on from the last.",
        ),
        Clauses(
            "Count each surcharge from the base price.",
            "Count each surcharge on from price to price.",
        ),
        *more_clauses("prices", Clauses),
    ),
    grammar="prices",
    dev=(
        Clauses(
            "Each price starts from the base.",
            "Each price starts from the one above.",
        ),
        Clauses(
            "Add the surcharge to the base price each time.",
            "Add the surcharge to the last price each time.",
        ),
    ),
    test=(
        Clauses(
            "Every price is the base price plus the surcharge.",
            "Every price is the price above plus the surcharge.",
        ),
        Clauses(
            "Start from the base again for each seller.",
            "Go on from the price as above for each seller.",
        ),
        Clauses(
            "Work out all prices from the base, each time again.",
            "Work out all prices from the last one, going on each time.",
        ),
    ),
)


def as_given(draw: Draw) -> Task:
    """Every price counts from the base."""
    return _task(draw, is_chain=False)


def as_above(draw: Draw) -> Task:
    """Every price counts from the one above."""
    return _task(draw, is_chain=True)


def _task(draw: Draw, *, is_chain: bool) -> Task:
    num = draw.count(low=3, high=7)
    sellers, foods = draw.names(num), draw.words("food", 2 * num)
    base, *steps = draw.values(num + 1, 11, 59)
    rows = [(s, foods.pop(), foods.pop(), step) for s, step in zip(sellers, steps, strict=True)]
    records = draw_records(draw, ("seller", "one", "two", "surcharge"), rows)
    form, request = draw_format(draw)
    clauses = draw.wording(CLAUSES)
    opening = draw.wording(OPENINGS).format(base=base)
    units = []
    price = base
    for index, (seller, one, two, step) in enumerate(rows):
        start = price if is_chain else base
        price = start + step
        body = f"{one} and {two} are on offer. {added(start, step)}. The price is {price}."
        facts = (Fact(one, ("offer",)), Fact(two, ("offer",)), Fact(str(price), ("price",)))
        needs = frozenset({index - 1}) if is_chain and index else frozenset[int]()
        text = item(form, index, seller, body)
        units.append(Unit(text, seller, seller, facts, needs, not is_chain, separator(form)))
    sentences = [opening, clauses.chain if is_chain else clauses.free, request]
    dependence = Dependence.CHAIN if is_chain else Dependence.FREE
    says = preface(is_chain=is_chain, separator=separator(form))
    return records.task(draw, sentences, units, dependence, preface=says, ordered=is_chain)
