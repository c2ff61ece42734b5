"""Forks and syncs of an answer, compared with the dependencies of its task.

A unit of a task counts as forked if a block begins with it. A block without a unit is stray; of a
block with several units, the first is forked. A sync is named by the unit that follows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pasta_lab.tasks.gold import needed_syncs
from pasta_lab.tasks.task import Task
from pasta_lm.language.document import Block, Document
from pasta_lm.language.events import Text


@dataclass(frozen=True, slots=True)
class Structure:
    """The forks and syncs of one answer."""

    forked: frozenset[int] = frozenset()
    """Units that are blocks."""
    num_stray: int = 0
    """Blocks that begin with no unit."""
    syncs: frozenset[int] = frozenset()
    """Units that follow a sync; the number of units stands for the end."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Agreement with the true structure: precision is right / predicted, recall right / wanted."""

    right: int
    predicted: int
    wanted: int


def true_structure(task: Task) -> Structure:
    """Return the structure that the task's dependencies allow and ask for."""
    forked = [index for index, unit in enumerate(task.units) if unit.fork]
    return Structure(frozenset(forked), 0, frozenset(needed_syncs(task.units, forked)))


def structure(task: Task, document: Document, *, by_details: bool = False) -> Structure:
    """Return what an answer forked, unit by unit.

    Args:
        task: The task.
        document: The answer.
        by_details: Blocks hold what follows a unit's first words, as APAR forks: a block that
            begins with no unit forks the unit that it is in.
    """
    places = unit_starts(task, document.plain_text)
    starts = sorted((start, index) for index, start in enumerate(places) if start is not None)
    forked: set[int] = set()
    syncs: set[int] = set()
    num_stray = 0
    for begin, end in spans(document):
        if end is None:
            following = [index for start, index in starts if start >= begin]
            syncs.add(following[0] if following else len(task.units))
            continue
        inside = [index for start, index in starts if begin <= start < end]
        if by_details and not inside:
            around = [index for start, index in starts if start < begin][-1:]
            inside = [index for index in around if index not in forked]
        forked.update(inside[:1])
        num_stray += not inside
    return Structure(frozenset(forked), num_stray, frozenset(syncs))


def unit_starts(task: Task, text: str) -> list[int | None]:
    """Return the first index of each unit's anchor in an answer; None: it is not there."""
    matches = [re.search(rf"(?<!\w){re.escape(unit.anchor)}(?!\w)", text) for unit in task.units]
    return [match and match.start() for match in matches]


def spans(document: Document) -> Iterator[tuple[int, int | None]]:
    """Yield where each block begins and ends in the plain text; a sync has no end."""
    place = 0
    for item in document.items:
        if isinstance(item, (Text, Block)):
            text = item.text if isinstance(item, Text) else item.plain_text
            if isinstance(item, Block):
                yield place, place + len(text)
            place += len(text)
        else:
            yield place, None


def fork_counts(predicted: Structure, true: Structure) -> Counts:
    """Return how the forks agree; a stray block was given and is not right."""
    right = len(predicted.forked & true.forked)
    return Counts(right, len(predicted.forked) + predicted.num_stray, len(true.forked))


def sync_counts(predicted: Structure, true: Structure) -> Counts:
    """Return how the syncs agree."""
    return Counts(len(predicted.syncs & true.syncs), len(predicted.syncs), len(true.syncs))


def distance(first: Structure, second: Structure) -> int:
    """Return how many forks and syncs one structure has and the other has not."""
    return len(first.forked ^ second.forked) + len(first.syncs ^ second.syncs)
