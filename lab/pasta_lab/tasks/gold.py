"""The true structure of a task's answer: the forks that pay and the syncs that they need."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pasta_lab.tasks.task import Task, Unit
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text


def needed_syncs(units: Sequence[Unit], blocks: Collection[int]) -> list[int]:
    """Return the units that need a sync in front of them if these units are blocks.

    A sync is needed where a unit needs a block that no earlier sync has joined.
    """
    syncs: list[int] = []
    unjoined: set[int] = set()
    for index, unit in enumerate(units):
        if any(need >= index for need in unit.needs):
            raise ValueError(f"unit {index} needs {sorted(unit.needs)}")
        if unit.needs & unjoined:
            syncs.append(index)
            unjoined.clear()
        if index in blocks:
            unjoined.add(index)
    return syncs


def plan(units: Sequence[Unit], preface: str = "") -> Document:
    """Return the answer with every block that pays and every sync that they need.

    The white space before a unit stays in front of its sync: only the text of the unit needs the
    blocks.
    """
    syncs = needed_syncs(units, [index for index, unit in enumerate(units) if unit.fork])
    items: list[Item] = []
    for index, unit in enumerate(units):
        items.append(Text(unit.before if index else preface))
        items += [Sync()] if index in syncs else []
        text = Text(unit.text)
        items.append(Block(unit.topic, None, (text,)) if unit.fork else text)
    return Document(tuple(items))


def gold(task: Task) -> Document:
    """Return the answer with the structure that its dependencies allow."""
    return plan(task.units, task.preface)
