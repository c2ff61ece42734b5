"""Ways to put tags on a task's answer: as its dependencies are, by chance wrong, or by a rule."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random

from pasta_lm.language.document import Block, Document
from pasta_lm.language.events import Sync, Text
from pasta_lm.tasks.layout import Layout
from pasta_lm.tasks.plan import needed_syncs, plan, write
from pasta_lm.tasks.rules import MARKED, rule_document
from pasta_lm.tasks.task import Task

MISSED = 0.3
"""Share of true blocks that the noisy annotator misses."""
ADDED = 0.3
"""Share of the other units that it makes blocks of."""
NO_TOPIC = "part"
"""The topic of every block where topics are taken away."""
SYNC_NOISE = 0.2
"""Share of syncs that it drops, and of the other places where it puts one."""


def gold(task: Task, seed: int = 0) -> Document:
    """Return the answer with the structure that its dependencies allow."""
    return plan(task.units, task.preface)


def plain(task: Task, seed: int = 0) -> Document:
    """Return the answer without tags."""
    return plan(task.units, task.preface).without_tags()


def noisy(task: Task, seed: int = 0) -> Document:
    """Return the answer as an annotator marks it that errs at fixed rates, whatever is true.

    The honest analogue of a teacher model. Seeded by task, so that a data set can be made again.
    """
    random = Random(f"noisy/{task.id}/{seed}")
    units = task.units
    true_syncs = needed_syncs(units, [i for i, unit in enumerate(units) if unit.fork])
    blocks = [
        index
        for index, unit in enumerate(units)
        if (random.random() >= MISSED if unit.fork else random.random() < ADDED)
    ]
    syncs = [i for i in range(len(units)) if (random.random() < SYNC_NOISE) ^ (i in true_syncs)]
    return write(units, blocks, syncs, task.preface)


def noisy_without_topics(task: Task, seed: int = 0) -> Document:
    """Return the same with one topic for all blocks: promises say where text comes, not of what."""
    items = noisy(task, seed).items
    return Document(
        tuple(replace(one, topic=NO_TOPIC) if isinstance(one, Block) else one for one in items)
    )


def noisy_without_syncs(task: Task, seed: int = 0) -> Document:
    """Return the noisy annotator's blocks without its syncs: nothing ever sees a block."""
    items = noisy(task, seed).items
    return Document(tuple(one for one in items if not isinstance(one, Sync)))


def always_fork(task: Task, seed: int = 0) -> Document:
    """Return the answer with every unit a block, its true syncs kept as they are."""
    return _forking(task, range(len(task.units)))


def random_fork(task: Task, rate: float, seed: int = 0) -> Document:
    """Return the answer with units made blocks by chance, syncs where its true blocks need them.

    Args:
        task: What was asked.
        rate: The chance of each unit.
        seed: With the task's id, of the chance: the same block falls at every rate above its own.
    """
    random = Random(f"fork/{task.id}/{seed}")
    return _forking(task, [i for i in range(len(task.units)) if random.random() < rate])


def _forking(task: Task, blocks: Collection[int]) -> Document:
    units = task.units
    true_blocks = [index for index in blocks if units[index].fork]
    return write(units, blocks, needed_syncs(units, true_blocks), task.preface)


def never_sync(task: Task, seed: int = 0) -> Document:
    """Return the answer with its true blocks and no sync."""
    units = task.units
    return write(units, [i for i, unit in enumerate(units) if unit.fork], (), task.preface)


def rule(task: Task, seed: int = 0) -> Document:
    """Return the answer as rule-pasta's rule marks it: from its Markdown, whatever was asked."""
    return _with_topics(task, rule_document(task.body))


def rule_lines(task: Task, seed: int = 0) -> Document:
    """Return the same where lines that stand alone are set apart too."""
    return _with_topics(task, rule_document(task.body, MARKED | {Layout.LINE}))


def _with_topics(task: Task, document: Document) -> Document:
    """Give blocks that are whole units the topics that every annotator gives them.

    A rule places blocks and syncs; that it had other topics as well, or took the preface for a part
    of its own, would blur the comparison.
    """
    topics = {unit.text: unit.topic for unit in task.units}
    items = [
        replace(item, topic=topics.get(item.plain_text, item.topic))
        if isinstance(item, Block)
        else item
        for item in document.items
    ]
    return Document((Text(task.preface), *items))


ANNOTATORS: dict[str, Callable[[Task, int], Document]] = {
    "gold": gold,
    "noisy": noisy,
    "noisy_without_topics": noisy_without_topics,
    "noisy_without_syncs": noisy_without_syncs,
    "plain": plain,
    "always_fork": always_fork,
    "never_fork": plain,
    "never_sync": never_sync,
    "rule": rule,
    "rule_lines": rule_lines,
}


def annotate(task: Task, name: str, seed: int = 0) -> Document:
    """Return the task's answer as the annotator of this name marks it.

    Raises:
        KeyError: there is no such annotator.
    """
    return ANNOTATORS[name](task, seed)
