"""Stages of a journey: the length of each, or the distance from the start so far."""

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
        "A journey has these stages, each with a part by land and a part by water.",
        "Below are the stages of a journey with their miles by land and by water.",
        "Each stage of the journey goes some miles by land and some by water.",
        "Here is a journey. Every stage has a part by land and one by water.",
        "The stages of a journey are listed with vehicle, land miles and water miles.",
        "We travel in stages, each by land and by water.",
        "These stages make up a journey by land and by water.",
        *more_sentences("journeys openings"),
    ),
    grammar="journeys openings",
    dev=("The journey below has stages with miles by land and by water.",),
    test=(
        "Here are the stages of a journey by land and by water.",
        "A journey is listed below, each stage with land miles and water miles.",
        "Every stage of this journey has miles by land and by water.",
    ),
)

CLAUSES = Wordings(
    train=(
        Clauses(
            "Say how long each stage is.", "Say how far we are from the start after each stage."
        ),
        Clauses("Give the miles of every stage alone.", "Give the miles so far after every stage."),
        Clauses(
            "Measure each stage on its own.", "Measure from the start of the journey each time."
        ),
        Clauses(
            "Work out the length of each stage without the stages before it.",
            "Work out the length of the way with the stages before it.",
        ),
        Clauses(
            "Count from zero at the start of every stage.",
            "Count on from stage to stage.",
        ),
        Clauses(
            "Every distance is that of one stage only.",
            "Every distance includes the stages above.",
        ),
        Clauses(
            "List the distances stage by stage, each one separate.",
            "List the distances from the start, each one longer than the one above.",
        ),
        Clauses(
            "For each stage, add its two parts and leave out the earlier stages.",
            "For each stage, add its two parts to the earlier stages.",
        ),
        Clauses(
            "How many miles has each stage?",
            "How many miles have we gone in all after each stage?",
        ),
        Clauses(
            "State the length of the stage itself each time.",
            "State the running distance each time.",
        ),
        Clauses(
            "Add land and water of every stage on its own.",
            "Add land and water of every stage to the miles so far.",
        ),
        Clauses(
            "Give each stage its own miles, without those above.",
            "Give each stage the miles including those above.",
        ),
        Clauses(
            "Say how many miles each stage is, leaving out the others.",
            "Say how many miles it is from the start, up to each stage.",
        ),
        Clauses("Start from zero at each stage.", "Go on from the stage above each time."),
        Clauses(
            "The distances are separate, one stage each.",
            "The distances grow, each with the earlier stages.",
        ),
        Clauses(
            "State the miles of one stage only, every time.",
            "State the miles gone so far, every time.",
        ),
        Clauses(
            "Work out each stage alone: its land and its water.",
            "Work out each stage and the way before it: all land and water.",
        ),
        Clauses("Every stage counts by itself.", "Every stage counts together with those above."),
        *more_clauses("journeys", Clauses),
    ),
    grammar="journeys",
    dev=(
        Clauses(
            "Work out the miles of each stage alone.",
            "Work out the miles so far at each stage.",
        ),
        Clauses(
            "Give the distance of every stage, leaving out those above.",
            "Give the distance of every stage, including those above.",
        ),
    ),
    test=(
        Clauses(
            "Give the length of every stage on its own.",
            "Give the distance from the start after every stage.",
        ),
        Clauses(
            "Work out each distance without the earlier stages.",
            "Work out each distance with the earlier stages.",
        ),
        Clauses(
            "State how many miles each stage has, one only.",
            "State how many miles we have gone so far at each stage.",
        ),
    ),
)


def legs(draw: Draw) -> Task:
    """Independent computations: the length of each stage."""
    return _task(draw, is_chain=False)


def route(draw: Draw) -> Task:
    """A dependent list: the distance from the start after each stage."""
    return _task(draw, is_chain=True)


def _task(draw: Draw, *, is_chain: bool) -> Task:
    num = draw.count(high=7)
    places, vehicles = draw.names(num), draw.words("vehicle", num)
    lands, waters = draw.values(num, 11, 59), draw.values(num, 11, 59)
    rows = list(zip(places, vehicles, lands, waters, strict=True))
    records = draw_records(draw, ("stage", "vehicle", "land", "water"), rows)
    form, request = draw_format(draw)
    clauses = draw.wording(CLAUSES)
    prompt = [draw.wording(OPENINGS), clauses.chain if is_chain else clauses.free, request]
    units: list[Unit] = []
    total = 0
    for index, (place, vehicle, land, water) in enumerate(rows):
        needs_last = is_chain and index > 0
        addends = (total, land, water) if needs_last else (land, water)
        total = sum(addends)
        body = f"by {vehicle}, {summed(addends)}. The distance is {total} miles."
        units.append(
            Unit(
                text=item(form, index, place, body),
                anchor=place,
                topic=place,
                facts=(Fact(vehicle, ("by",)), Fact(str(total), ("distance",))),
                needs=frozenset({index - 1}) if needs_last else frozenset(),
                fork=not is_chain,
                before=separator(form),
            )
        )
    dependence = Dependence.CHAIN if is_chain else Dependence.FREE
    says = preface(is_chain=is_chain, separator=separator(form))
    return records.task(draw, prompt, units, dependence, preface=says, ordered=is_chain)
