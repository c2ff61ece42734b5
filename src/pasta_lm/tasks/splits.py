"""The fixed sets that models are measured on, and the hash that says they have not changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pasta_lm.tasks.registry import FAMILIES, make
from pasta_lm.tasks.task import Split, Task

NUM_PER_FAMILY = 400
"""Prompts of each family in the test set: a grade's interval is then about +-0.02 at 0.95."""
NUM_HARD_PER_FAMILY = 100
NUM_DEV_PER_FAMILY = 40


def task_set(
    split: Split | str,
    num_per_family: int = NUM_PER_FAMILY,
    *,
    families: Iterable[str] | None = None,
    wordings: str | None = None,
) -> list[Task]:
    """Return the first tasks of every family, families uniform; the same every time.

    Args:
        split: Where they are drawn from.
        num_per_family: How many of each.
        families: Which, all where None.
        wordings: Another split whose wordings are used instead.

    Raises:
        KeyError: there is no such family.
    """
    names = tuple(FAMILIES if families is None else families)
    seeds = range(num_per_family)
    return [make(name, split, seed, wordings=wordings) for name in names for seed in seeds]


def prompts_hash(tasks: Iterable[Task]) -> str:
    """Return the SHA-256 of the ids, prompts and reference answers of tasks, in order."""
    digest = hashlib.sha256()
    for task in tasks:
        for text in (task.id, task.prompt, task.text):
            digest.update(text.encode() + b"\0")
    return digest.hexdigest()
