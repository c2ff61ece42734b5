"""Things given for things: each looked up by itself, or each got by giving away the last one.

Steps are named by number, so that no topic tells what a chain has come to.
"""

from __future__ import annotations

from typing import NamedTuple

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
        "Some traders each want one thing and give another. The things are: {things}.",
        "Each trader takes one thing, gives another and asks for a fee. Things: {things}.",
        "At the market every trader wants one thing and gives another. We have {things}.",
        "Below are traders with what they want and what they give. Our things are {things}.",
        "Traders exchange things for a fee. The list of things is {things}.",
        "We bring {things} to the market. Each trader wants one thing and gives another.",
        "These things are given: {things}. Each trader exchanges one of them for a fee.",
        *more_sentences("exchanges openings"),
    ),
    grammar="exchanges openings",
    dev=("Every trader exchanges one thing for another. The things are {things}.",),
    test=(
        "Each trader wants one thing and gives another for a fee. Our things: {things}.",
        "The market has traders who exchange one thing for another. We have {things}.",
        "Here are traders and what they want and give. The things are {things}.",
    ),
)

CLAUSES = Wordings(
    train=(
        Clauses(
            "Take each thing to its trader.", "Take the first thing, then always the one you got."
        ),
        Clauses(
            "Exchange every thing of the list, one a step.",
            "Exchange the first thing, and at every step what the last step gave.",
        ),
        Clauses(
            "At each step use the next thing of our list.",
            "At each step use what the step before gave.",
        ),
        Clauses(
            "Every step starts with its own thing from the list.",
            "Every step starts with the thing got in the step above.",
        ),
        Clauses(
            "Say for each of our things what it is exchanged for.",
            "Start with the first thing and exchange it on and on.",
        ),
        Clauses(
            "The steps are separate: one for each thing.",
            "The steps form a chain: what you get is what you give next.",
        ),
        Clauses(
            "Step by step, exchange the things of the list as numbered.",
            "Step by step, exchange the first thing and then whatever you receive.",
        ),
        Clauses(
            "Do not pass on what you receive; each step takes a thing of the list.",
            "Pass on what you receive; only the first step takes a thing of the list.",
        ),
        Clauses(
            "Give away our things one after the other.",
            "Give away what you hold each time, beginning with the first thing.",
        ),
        Clauses(
            "What would each thing of the list bring?",
            "What would the first thing bring if all that is got is exchanged again?",
        ),
        Clauses(
            "Use each thing of the list once, one a step.",
            "Use the first thing, and then what each exchange gave.",
        ),
        Clauses(
            "Say step by step what each of our things is exchanged for.",
            "Say step by step what we hold when all that we get is exchanged.",
        ),
        Clauses(
            "Each step takes the next thing that we have.",
            "Each step takes the thing that we got before.",
        ),
        Clauses(
            "Take all things of the list to their traders.",
            "Take the first thing to its trader and go on with what he gave.",
        ),
        Clauses(
            "Exchange the things as numbered; what you get stays with you.",
            "Exchange the first thing; what you get goes to the next trader.",
        ),
        Clauses(
            "Every thing of our list is exchanged once, each separate.",
            "Every thing that we get is exchanged again, on and on.",
        ),
        Clauses(
            "Start each step with another thing of the list.",
            "Start each step with the thing that the step before gave.",
        ),
        Clauses(
            "One step for each thing of the list, please.",
            "One step after the other: always exchange what you got.",
        ),
        *more_clauses("exchanges", Clauses),
    ),
    grammar="exchanges",
    dev=(
        Clauses(
            "At every step exchange the next thing of the list.",
            "At every step exchange what the step before gave.",
        ),
        Clauses(
            "Each step takes its own thing to its trader.",
            "Each step takes what you got to its trader.",
        ),
    ),
    test=(
        Clauses(
            "Every step uses one thing of our list.",
            "Every step uses what you got in the step before.",
        ),
        Clauses(
            "Exchange our things one a step, each separate.",
            "Exchange the first thing, then what you get each time.",
        ),
        Clauses(
            "Take each thing of the list and say what it is exchanged for.",
            "Take the first thing and exchange on what each step gave.",
        ),
    ),
)


class Trade(NamedTuple):
    """A record: what is taken by whom, where, and for which fee and thing."""

    wants: str
    trader: str
    place: str
    fee: int
    gives: str


def lookups(draw: Draw) -> Task:
    """Independent look-ups: each thing of the list is exchanged."""
    return _task(draw, is_chain=False)


def substitutions(draw: Draw) -> Task:
    """Chained substitutions: each step starts from what the last one gave."""
    return _task(draw, is_chain=True)


def _task(draw: Draw, *, is_chain: bool) -> Task:
    num = draw.count(low=3, high=7)
    chain = draw.words("object", num + 1)
    traders, places = draw.names(num), draw.words("colour", num)
    fees = draw.values(num)
    trades = [Trade(*cells) for cells in zip(chain, traders, places, fees, chain[1:], strict=False)]
    listed = [chain[0], *_out_of_chain(draw, chain[1:-1])]
    things = ", ".join(f"{index} {thing}" for index, thing in enumerate(listed, 1))
    by_thing = {trade.wants: trade for trade in trades}
    draw.random.shuffle(trades)
    records = draw_records(draw, ("thing", "trader", "stall", "fee", "gives"), trades)
    form, request = draw_format(draw)
    clauses = draw.wording(CLAUSES)
    opening = draw.wording(OPENINGS).format(things=things)
    units = []
    for index, thing in enumerate(chain[:-1] if is_chain else listed):
        trade, name = by_thing[thing], f"Step {index + 1}"
        body = (
            f"{thing} goes to {trade.trader} at the {trade.place} stall for {trade.fee} coins, "
            f"and we get {trade.gives}."
        )
        facts = (
            Fact(thing, ("goes",)),
            Fact(trade.trader, ("goes",)),
            Fact(trade.place, ("at the",)),
            Fact(str(trade.fee), ("coins",)),
            Fact(trade.gives, ("get",)),
        )
        needs = frozenset({index - 1}) if is_chain and index else frozenset[int]()
        text = item(form, index, name, body)
        units.append(Unit(text, name, name, facts, needs, not is_chain, separator(form)))
    dependence = Dependence.CHAIN if is_chain else Dependence.FREE
    sentences = [opening, clauses.chain if is_chain else clauses.free, request]
    says = preface(is_chain=is_chain, separator=separator(form))
    task = records.task(draw, sentences, units, dependence, preface=says, ordered=is_chain)
    return task.with_candidates(chain)


def _out_of_chain(draw: Draw, things: list[str]) -> list[str]:
    """Return the things in an order in which none stands where the chain would have it."""
    shift = draw.random.randrange(1, len(things)) if len(things) > 1 else 0
    return things[shift:] + things[:shift]
