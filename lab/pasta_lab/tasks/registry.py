"""Task families by name, and the fixed sets of tasks with their hashes."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random

from pasta_lab.tasks.draw import Draw
from pasta_lab.tasks.families import mixed, paired_lists, sections
from pasta_lab.tasks.task import Split, Task


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of task.

    Attributes:
        name: Its name in every table.
        make: Draws one task.
        partner: The family on the other side of its minimal pairs, if it has one.
        held_out: Whether it is in no training stage.
        draws: Tasks of it in each round of a mixture: short answers have few tokens to learn.
    """

    name: str
    make: Callable[[Draw], Task]
    partner: str | None = None
    held_out: bool = False
    draws: int = 1


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("takings", paired_lists.takings, partner="running_takings"),
        Family("running_takings", paired_lists.running_takings, partner="takings"),
        Family("legs", paired_lists.legs, partner="route"),
        Family("route", paired_lists.route, partner="legs"),
        Family("profiles", sections.profiles),
        Family("plain_chunks", sections.plain_chunks),
        Family("single_answer", sections.single_answer, draws=4),
        Family("lookups", paired_lists.lookups, partner="substitutions"),
        Family("substitutions", paired_lists.substitutions, partner="lookups"),
        Family("numbered_apart", paired_lists.numbered_apart, partner="numbered_on"),
        Family("numbered_on", paired_lists.numbered_on, partner="numbered_apart"),
        Family("as_given", paired_lists.as_given, partner="as_above"),
        Family("as_above", paired_lists.as_above, partner="as_given"),
        Family("code_words", mixed.code_words),
        Family("two_rounds", mixed.two_rounds),
        Family("uneven", mixed.uneven),
        Family("short_answers", mixed.short_answers, draws=4),
        Family("tallies_motto", mixed.tallies_motto, partner="tallies"),
        Family("tallies", mixed.tallies, partner="tallies_motto"),
        Family("bills_motto", mixed.bills_motto, partner="bills"),
        Family("bills", mixed.bills, partner="bills_motto"),
        Family("menus", mixed.menus, held_out=True),
        Family("savings", mixed.savings, held_out=True),
        Family("harvest", mixed.harvest, held_out=True),
        Family("profiles_then_running", mixed.profiles_then_running, held_out=True),
    )
}


def training_families() -> tuple[str, ...]:
    """Return the families that training may use."""
    return tuple(family.name for family in FAMILIES.values() if not family.held_out)


def held_out_families() -> tuple[str, ...]:
    """Return the families that are in no training stage."""
    return tuple(family.name for family in FAMILIES.values() if family.held_out)


def make(family: str, split: Split | str, seed: int, *, wordings: str | None = None) -> Task:
    """Draw the task of a seed; pair partners with the same seed are a minimal pair.

    Raises:
        KeyError: there is no such family.
    """
    kind, split = FAMILIES[family], Split(split)
    group = min(family, kind.partner or family)
    source = None if wordings is None else Split(wordings)
    task = kind.make(Draw(split, f"{group}/{seed}", wordings=source))
    pair = f"{group}-{split.value}-{seed}" if kind.partner else None
    return replace(task, id=f"{family}-{split.value}-{seed}", family=family, pair=pair)


def partner_of(task: Task) -> Task | None:
    """Return the task on the other side of a minimal pair, or None: the task is in no pair."""
    partner, seed = FAMILIES[task.family].partner, int(task.id.rsplit("-", 1)[1])
    return None if partner is None else make(partner, task.split, seed)


def mixture(split: Split | str, seed: int) -> Iterator[Task]:
    """Yield tasks of all training families without end, in rounds.

    Each round has every family ``draws`` times, in random order.
    """
    random = Random(f"mixture/{seed}")
    names = [name for name in training_families() for _ in range(FAMILIES[name].draws)]
    for count in itertools.count():
        drawn: Counter[str] = Counter()
        for name in random.sample(names, len(names)):
            number = seed * 10_000 + 10 * count + drawn[name]
            drawn[name] += 1
            yield make(name, split, number)


EXAMPLE_SEED = 90_001
"""Of the example prompts, beyond the seeds of every measured set."""


def prompts_hash(tasks: Iterable[Task]) -> str:
    """Return the SHA-256 of the ids, prompts and reference answers of tasks, in order."""
    digest = hashlib.sha256()
    for task in tasks:
        for text in (task.id, task.prompt, task.text):
            digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def example(family: str, seed: int | None = None) -> Task:
    """Return the example of a family, or that of a seed; no training saw its words and numbers."""
    return make(family, Split.DEV, EXAMPLE_SEED if seed is None else seed)
