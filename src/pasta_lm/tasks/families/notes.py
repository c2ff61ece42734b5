"""Numbered notes: each record counts from one, or the numbers go on through all records."""

from __future__ import annotations

from typing import NamedTuple

from pasta_lm.tasks.draw import Draw, Wordings
from pasta_lm.tasks.more_wordings import more_clauses, more_sentences
from pasta_lm.tasks.prefaces import preface
from pasta_lm.tasks.records import write_lines
from pasta_lm.tasks.task import Dependence, Fact, Task, Unit


class Clauses(NamedTuple):
    """One wording with both of its sides."""

    free: str
    chain: str


OPENINGS = Wordings(
    train=(
        "Below, every room has a list of things in it.",
        "These rooms hold some things each.",
        "Here are rooms and the things found in them.",
        "The list names the things in each room.",
        "For each room, its things are given.",
        "Rooms and their things are listed here.",
        "Each line names a room and the things it holds.",
        *more_sentences("notes openings"),
    ),
    grammar="notes openings",
    dev=("Here every room is listed with its things.",),
    test=(
        "Here are some rooms, each with a list of things.",
        "The rooms below hold some things each.",
        "Each room is given with the things found in it.",
    ),
)

CLAUSES = Wordings(
    train=(
        Clauses("Number the notes of each room from 1.", "Number the notes through all rooms."),
        Clauses(
            "In every room the note numbers begin again.",
            "From room to room the note numbers go on.",
        ),
        Clauses(
            "Write a note on every thing, counting each room by itself.",
            "Write a note on every thing, counting all rooms together.",
        ),
        Clauses(
            "The first note of each room is note 1.",
            "Only the first note of all is note 1, the numbers go on.",
        ),
        Clauses(
            "Start the numbers again at 1 for the next room.",
            "Do not start the numbers again for the next room.",
        ),
        Clauses(
            "Each room has its own note numbers.",
            "All rooms share one row of note numbers.",
        ),
        Clauses(
            "Give numbered notes; do not carry the count over to the next room.",
            "Give numbered notes; carry the count over to the next room.",
        ),
        Clauses(
            "Count the notes room by room, each from 1.",
            "Count the notes on and on, from room to room.",
        ),
        Clauses(
            "The numbers of the notes are separate for each room.",
            "The numbers of the notes continue those of the room above.",
        ),
        Clauses(
            "Every room begins with note 1.",
            "Every room begins with the number after the last note above.",
        ),
        Clauses("Each room counts its notes from 1.", "The notes of all rooms are counted on."),
        Clauses("Go back to note 1 at every room.", "Go on with the next number at every room."),
        Clauses(
            "Give every thing a note; the count begins again in each room.",
            "Give every thing a note; the count goes on in each room.",
        ),
        Clauses(
            "Write the notes so that each room starts with 1.",
            "Write the notes so that each room starts after the last number.",
        ),
        Clauses(
            "Number the things as notes, every room on its own.",
            "Number the things as notes, one row for all rooms together.",
        ),
        Clauses(
            "Note numbers: separate, from 1 in each room.",
            "Note numbers: going on, through all the rooms.",
        ),
        Clauses(
            "Begin again with 1 whenever a room begins.",
            "Continue the number above whenever a room begins.",
        ),
        Clauses(
            "Do not count the notes of the room above.", "Count the notes of the room above too."
        ),
        *more_clauses("notes", Clauses),
    ),
    grammar="notes",
    dev=(
        Clauses(
            "The note numbers begin again at 1 in each room.",
            "The note numbers continue from room to room.",
        ),
        Clauses(
            "Count the notes of every room by itself.",
            "Count the notes of all rooms together.",
        ),
    ),
    test=(
        Clauses(
            "Start each room with note 1 again.",
            "Start each room with the number after the one above.",
        ),
        Clauses(
            "Number the notes, each room by itself.",
            "Number the notes, all rooms together.",
        ),
        Clauses(
            "Write numbered notes and begin again in every room.",
            "Write numbered notes and go on counting in every room.",
        ),
    ),
)


def numbered_apart(draw: Draw) -> Task:
    """Every record counts its notes from one."""
    return _task(draw, is_chain=False)


def numbered_on(draw: Draw) -> Task:
    """The numbers go on: each record needs the last number above."""
    return _task(draw, is_chain=True)


def _task(draw: Draw, *, is_chain: bool) -> Task:
    num = draw.count(low=3, high=6)
    rooms = draw.names(num)
    counts = [draw.choice((2, 3, 3, 4, 5)) for _ in rooms]
    things = draw.words("object", sum(counts))
    rows = []
    units: list[Unit] = []
    before = 0
    for index, (room, count) in enumerate(zip(rooms, counts, strict=True)):
        own, things = things[:count], things[count:]
        rows.append((room, *own))
        start = before + 1 if is_chain else 1
        notes = [f"note {number} is {thing}" for number, thing in enumerate(own, start)]
        before += count
        needs = frozenset({index - 1}) if is_chain and index else frozenset[int]()
        facts = tuple(Fact(note) for note in notes)
        units.append(Unit(f"{room}: {', '.join(notes)}.", room, room, facts, needs, not is_chain))
    clauses = draw.wording(CLAUSES)
    sentences = [draw.wording(OPENINGS), clauses.chain if is_chain else clauses.free]
    dependence = Dependence.CHAIN if is_chain else Dependence.FREE
    records, says = write_lines(draw, rows), preface(is_chain=is_chain)
    return records.task(draw, sentences, units, dependence, preface=says, ordered=is_chain)
