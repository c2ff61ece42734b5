"""Annotators of a task's answer: its true structure, copies of it with errors, and rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from random import Random

from pasta_lab.tasks.layout import EVERY_LINE, label_document, rule_document
from pasta_lab.tasks.task import Task, Unit
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text

MISSED = 0.3
"""Share of true blocks that the noisy annotator misses."""
ADDED = 0.3
"""Share of the other units that it makes blocks of."""
SYNC_NOISE = 0.2
"""Share of true syncs that it drops, and of the other places where it puts one."""
SHORT_TOPIC = 4
"""Characters of a topic at which the systematic annotator overlooks what items need."""


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


def write(
    units: Sequence[Unit], blocks: Collection[int], syncs: Collection[int], preface: str = ""
) -> Document:
    """Return the answer with these units as blocks and a sync in front of those units.

    A sync that would join nothing is left out. The white space before a unit stays in front of
    its sync: only the text of the unit needs the blocks.
    """
    items: list[Item] = []
    has_unjoined = False
    for index, unit in enumerate(units):
        items.append(Text(unit.before if index else preface))
        if index in syncs and has_unjoined:
            items.append(Sync())
            has_unjoined = False
        text = Text(unit.text)
        items.append(Block(unit.topic, None, (text,)) if index in blocks else text)
        has_unjoined |= index in blocks
    return Document(tuple(items))


def plan(units: Sequence[Unit], preface: str = "") -> Document:
    """Return the answer with every block that pays and every sync that they need."""
    blocks = _true_blocks(units)
    return write(units, blocks, needed_syncs(units, blocks), preface)


def gold(task: Task, seed: int = 0) -> Document:
    """Return the answer with the structure that its dependencies allow."""
    return plan(task.units, task.preface)


def plain(task: Task, seed: int = 0) -> Document:
    """Return the answer without tags."""
    return Document((Text(task.text),))


def noisy(task: Task, seed: int = 0) -> Document:
    """Return the answer as marked by an annotator that errs at fixed rates.

    It stands for a teacher model. The errors do not depend on the content of the task, and are the
    same for the same task and seed.
    """
    random = Random(f"noisy/{task.id}/{seed}")
    units = task.units
    true_syncs = needed_syncs(units, _true_blocks(units))
    blocks = [
        index
        for index, unit in enumerate(units)
        if (random.random() >= MISSED if unit.fork else random.random() < ADDED)
    ]
    syncs = [i for i in range(len(units)) if (random.random() < SYNC_NOISE) ^ (i in true_syncs)]
    return write(units, blocks, syncs, task.preface)


def systematic(task: Task, seed: int = 0) -> Document:
    """Return the answer as marked by an annotator that errs seldom, and the same way each time.

    It makes no blocks within a paragraph, and of a list whose first topic is a short word it takes
    each item for independent. A model cannot average errors away that are always the same.
    """
    units = task.units
    if not any("\n" in unit.before for unit in units[1:]):
        return plain(task)
    if len(units[0].topic) <= SHORT_TOPIC and any(unit.needs for unit in units):
        return write(units, range(len(units)), (), task.preface)
    return gold(task)


def always_fork(task: Task, seed: int = 0) -> Document:
    """Return the answer with every unit a block, and its true syncs."""
    return _forking(task, range(len(task.units)))


def never_sync(task: Task, seed: int = 0) -> Document:
    """Return the answer with its true blocks and no sync."""
    return write(task.units, _true_blocks(task.units), (), task.preface)


def rule(task: Task, seed: int = 0) -> Document:
    """Return the answer as the rule for Markdown marks it; it does not see the label."""
    return _with_unit_topics(task, rule_document(task.body), task.preface)


def rule_lines(task: Task, seed: int = 0) -> Document:
    """Return the answer as the rule for every line marks it; it does not see the label."""
    return _with_unit_topics(task, rule_document(task.body, EVERY_LINE), task.preface)


def rule_label(task: Task, seed: int = 0) -> Document:
    """Return the answer as the rule that reads its label marks it."""
    return _with_unit_topics(task, label_document(task.text))


def _true_blocks(units: Sequence[Unit]) -> list[int]:
    return [index for index, unit in enumerate(units) if unit.fork]


def _forking(task: Task, blocks: Collection[int]) -> Document:
    units = task.units
    true_blocks = [index for index in blocks if units[index].fork]
    return write(units, blocks, needed_syncs(units, true_blocks), task.preface)


def _with_unit_topics(task: Task, document: Document, preface: str = "") -> Document:
    """Give blocks that are whole units the topics that the other annotators give them.

    Rules are compared by the blocks and syncs that they place, and other topics would blur that.
    """
    topics = {unit.text: unit.topic for unit in task.units}
    items = [
        replace(item, topic=topics.get(item.plain_text, item.topic))
        if isinstance(item, Block)
        else item
        for item in document.items
    ]
    return Document((Text(preface), *items))


Annotator = Callable[[Task, int], Document]

ANNOTATORS: dict[str, Annotator] = {
    "gold": gold,
    "noisy": noisy,
    "systematic": systematic,
    "plain": plain,
    "always_fork": always_fork,
    "never_sync": never_sync,
    "rule": rule,
    "rule_lines": rule_lines,
    "rule_label": rule_label,
}
