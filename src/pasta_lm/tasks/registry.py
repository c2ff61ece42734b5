"""Every family by name, and how a task, a twin or a whole mixture is made from a seed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from pasta_lm.tasks.draw import Draw
from pasta_lm.tasks.families import (
    code_words,
    exchanges,
    held_out,
    journeys,
    mixed,
    notes,
    prices,
    sections,
    takings,
    tallies,
)
from pasta_lm.tasks.task import Split, Task


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of task.

    Attributes:
        name: Its name in every table.
        make: Draws one task.
        twin: The family on the other side of its minimal pairs, if it has one.
        held_out: Whether no training stage ever sees it.
        draws: How often a mixture draws it in each round: short answers have few tokens to learn.
    """

    name: str
    make: Callable[[Draw], Task]
    twin: str | None = None
    held_out: bool = False
    draws: int = 1


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("takings", takings.takings, twin="running_takings"),
        Family("running_takings", takings.running_takings, twin="takings"),
        Family("legs", journeys.legs, twin="route"),
        Family("route", journeys.route, twin="legs"),
        Family("profiles", sections.profiles),
        Family("plain_chunks", sections.plain_chunks),
        Family("single_answer", sections.single_answer, draws=4),
        Family("lookups", exchanges.lookups, twin="substitutions"),
        Family("substitutions", exchanges.substitutions, twin="lookups"),
        Family("numbered_apart", notes.numbered_apart, twin="numbered_on"),
        Family("numbered_on", notes.numbered_on, twin="numbered_apart"),
        Family("as_given", prices.as_given, twin="as_above"),
        Family("as_above", prices.as_above, twin="as_given"),
        Family("code_words", code_words.code_words),
        Family("two_rounds", mixed.two_rounds),
        Family("uneven", mixed.uneven),
        Family("short_answers", mixed.short_answers, draws=4),
        Family("tallies_motto", tallies.tallies_motto, twin="tallies"),
        Family("tallies", tallies.tallies, twin="tallies_motto"),
        Family("bills_motto", tallies.bills_motto, twin="bills"),
        Family("bills", tallies.bills, twin="bills_motto"),
        Family("menus", held_out.menus, held_out=True),
        Family("savings", held_out.savings, held_out=True),
        Family("harvest", held_out.harvest, held_out=True),
        Family("profiles_then_running", held_out.profiles_then_running, held_out=True),
    )
}


TOKENIZER_SEED = 999_999
"""Of the mixture that the tokenizer is trained on; no recipe's."""


def training_families() -> tuple[str, ...]:
    """Return the families that training may see."""
    return tuple(family.name for family in FAMILIES.values() if not family.held_out)


def held_out_families() -> tuple[str, ...]:
    """Return the families that occur in no training stage."""
    return tuple(family.name for family in FAMILIES.values() if family.held_out)


def make(
    family: str,
    split: Split | str,
    seed: int,
    *,
    most: int | None = None,
    wordings: str | None = None,
) -> Task:
    """Draw the task of a seed; twins of one seed are the two sides of a minimal pair.

    Args:
        family: Its name.
        split: Where words, values and wordings come from.
        seed: The same seed gives the same task.
        most: The most records that the prompt may have, where the family leaves that open.
        wordings: Another split whose wordings are used instead.

    Raises:
        KeyError: there is no such family.
    """
    kind, split = FAMILIES[family], Split(split)
    group = min(family, kind.twin or family)
    source = None if wordings is None else Split(wordings)
    task = kind.make(Draw(split, f"{group}/{seed}", most=most, wordings=source))
    pair = f"{group}-{split.value}-{seed}" if kind.twin else None
    return replace(task, id=f"{family}-{split.value}-{seed}", family=family, pair=pair)


def twin_of(task: Task, *, most: int | None = None) -> Task | None:
    """Return the other side of a task's minimal pair, or None where it has none.

    Args:
        task: As ``make`` or ``mixture`` drew it.
        most: What it was drawn with.
    """
    twin, seed = FAMILIES[task.family].twin, int(task.id.rpartition("-")[2])
    return None if twin is None else make(twin, task.split, seed, most=most)


def mixture(split: Split | str, seed: int, *, most: int | None = None) -> Iterator[Task]:
    """Yield tasks of all training families without end, a round of all after the other.

    In a round every family is drawn as often as it says, in an order by chance.
    """
    random = Random(f"mixture/{seed}")
    names = [name for name in training_families() for _ in range(FAMILIES[name].draws)]
    for count in itertools.count():
        drawn: Counter[str] = Counter()
        for name in random.sample(names, len(names)):
            number = seed * 10_000 + 10 * count + drawn[name]
            drawn[name] += 1
            yield make(name, split, number, most=most)
