"""Attacks on the graders: answers without knowledge, by name.

Each gets at most 0.10 from both graders, in every family. An attack that is right for a task by
chance, or makes no sense for it, is left out there; a comment says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from pasta_lab.tasks.task import Task, Unit

NUM_FILLER_WORDS = 500
CONSTANT = "Here is the answer to your question. I hope that it helps, and wish you a nice day."
TAGS = "<async></async><sync/>"

_FILLER = ("well", "then", "as", "we", "all", "know", "and", "so", "on", "in", "a", "manner")
_MAX_TRIES = 20


def attacks(task: Task, seed: int = 0) -> dict[str, str]:
    """Return worthless answers to a task.

    Args:
        task: The task.
        seed: Random seed of the values of the wrong entities.

    Returns:
        Texts by the name of the attack.
    """
    return {
        "empty": "",
        "constant": CONSTANT,
        "tags": TAGS,
        "prompt": task.prompt,
        "table": task.records,
        "candidates": ", ".join(sorted(task.candidates)) + ".",
        "candidates_everywhere": _candidates_everywhere(task),
        "headings": "\n".join(unit.anchor for unit in task.units),
        "filler": f"{task.text}\n{_filler()}",
        **dict(_facts_everywhere(task)),
        **dict(_wrong_entities(task, seed)),
        **dict(_one_block(task)),
        **dict(_reversed(task)),
    }


def _candidates_everywhere(task: Task) -> str:
    """State all candidates in every unit, with the cues of a right answer."""
    everything = ", ".join([*sorted(task.candidates), *sorted(task.palette)])
    lines = []
    for unit in task.units:
        cues = " ".join(sorted({cue for fact in unit.facts for cue in fact.cues}))
        lines.append(f"{unit.anchor} {cues} {everything}.")
    return "\n".join(lines)


def _facts_everywhere(task: Task) -> Iterator[tuple[str, str]]:
    """State in every unit, in one short sentence, the facts of all records."""
    told = {word for cell in task.candidates for word in (cell, *cell.split())}
    facts = {fact: None for unit in task.units for fact in unit.facts if fact.value in told}
    own = [facts.keys() & unit.facts for unit in task.units]
    # Where all of it is true of a unit it is right there: the one asked for, the cup of two teams.
    if facts and all(len(said) < len(facts) for said in own):
        says = ", ".join(" ".join((*fact.cues[:1], fact.value)) for fact in facts)
        yield "facts_everywhere", "\n".join(f"{unit.anchor} {says}." for unit in task.units)


def _filler() -> str:
    return " ".join(_FILLER[i % len(_FILLER)] for i in range(NUM_FILLER_WORDS)) + "."


def _reversed(task: Task) -> Iterator[tuple[str, str]]:
    # Where order does not matter, the units in reverse are a right answer.
    if task.ordered and len(task.units) > 1:
        yield "reversed", "\n".join(unit.text for unit in reversed(task.units))


def _wrong_entities(task: Task, seed: int) -> Iterator[tuple[str, str]]:
    """State the right values in the wrong units."""
    if len(task.units) == 1:
        yield from _other_record(task, seed)
        return
    random = Random(f"attack/{task.id}/{seed}")
    for _ in range(_MAX_TRIES):
        others = random.sample(task.units, len(task.units))
        if all(_differ(unit, other) for unit, other in zip(task.units, others, strict=True)):
            bodies = map(_moved, others, task.units)
            yield "wrong_entities", "\n".join(bodies)
            return
    # No order puts wrong values everywhere: two units say the same, and each is right for both.


def _one_block(task: Task) -> Iterator[tuple[str, str]]:
    """Repeat the first unit under every other anchor; under its own it would be right."""
    first, *others = task.units
    # A unit that says the same as the first is right as it is.
    if others and all(_differ(first, other) for other in others):
        yield "one_block", "\n".join(_moved(first, other) for other in others)


def _differ(unit: Unit, other: Unit) -> bool:
    """Return whether units have no fact in common, so that each is wrong for the other."""
    return {*unit.facts}.isdisjoint(other.facts)


def _moved(unit: Unit, to: Unit) -> str:
    return re.sub(rf"\b{re.escape(unit.anchor)}\b", to.anchor, unit.text)


def _other_record(task: Task, seed: int) -> Iterator[tuple[str, str]]:
    """Replace the words of the one unit's row by those of another row."""
    (unit,) = task.units
    rows = [re.findall(r"\w+", line) for line in task.records.splitlines()]
    own = next(row for row in rows if row[0] == unit.anchor)
    values = {fact.value for fact in unit.facts}
    others = [
        row
        for row in rows
        if len(row) == len(own) and values.isdisjoint(row) and row[0] != unit.anchor
    ]
    # The head of a table has no values of anybody; where it is all that is left, nothing is said.
    others = [row for row in others if task.candidates.intersection(row)]
    if others:
        other = Random(f"attack/{task.id}/{seed}").choice(others)
        words = dict(zip(own[1:], other[1:], strict=True))
        yield "wrong_entities", re.sub(r"\w+", lambda m: words.get(m[0], m[0]), unit.text)
