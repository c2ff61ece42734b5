"""Helpers of the tests of tasks: wordings, places of blocks and syncs, deletions, corruptions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from random import Random

from pasta_lab.tasks import FAMILIES, Split, Task, Unit, make
from pasta_lab.tasks.draw import Wordings, read_data, wordings
from pasta_lab.tasks.gold import gold
from pasta_lm.language.document import Block, Document
from pasta_lm.language.events import Sync, Text

FILES = sorted(
    file.name.removesuffix(".toml")
    for file in files("pasta_lab.tasks").joinpath("data").iterdir()
    if file.name != "words.toml"
)


LABELLED = (
    *("takings", "running_takings", "legs", "route", "lookups", "substitutions"),
    *("numbered_apart", "numbered_on", "as_given", "as_above"),
)
"""Families whose answers begin with a label."""
SHARED_BY_MISTAKE = "The order to keep is {names}."
"""Listed for training and for tests; the fixed sets were hashed with it, so it stays."""


NUM_PER_FAMILY = {Split.TEST: 400, Split.HARD: 100, Split.DEV: 40}
"""Prompts of each family in the fixed sets."""


def task_set(split: Split | str, num: int, families: Iterable[str] = FAMILIES) -> list[Task]:
    """Return the first tasks of every family."""
    return [make(name, split, seed) for name in families for seed in range(num)]


def plain(task: Task) -> Document:
    """Return the task's answer without tags."""
    return gold(task).without_tags()


def syncless(task: Task) -> Document:
    """Return the task's answer with its true blocks and no sync."""
    return Document(tuple(item for item in gold(task).items if not isinstance(item, Sync)))


def allows_gain(task: Task) -> bool:
    """Return whether any part of the answer can be written in parallel."""
    return sum(unit.fork for unit in task.units) > 1


def every_wording() -> dict[str, Wordings]:
    """Return the wordings that training may see, by file and place."""
    return {
        f"{name}.{place}": wordings(name, place)
        for name in FILES
        for place, table in read_data(name).items()
        if name != "held_out" and isinstance(table, dict) and "train" in table
    }


def starts(task: Task) -> list[int]:
    """Return where each unit begins in the plain answer."""
    places: list[int] = []
    end = len(task.preface)
    for index, unit in enumerate(task.units):
        begin = end + (len(unit.before) if index else 0)
        places.append(begin)
        end = begin + len(unit.text)
    return places


def marked(task: Task, document: Document, topic: str | None = None) -> tuple[set[int], set[int]]:
    """Return which units are blocks, and where syncs stand; blocks have one topic or their own."""
    unit_at = {place: index for index, place in enumerate(starts(task))}
    blocks: set[int] = set()
    syncs: set[int] = set()
    place = 0
    for item in document.items:
        match item:
            case Text(text):
                place += len(text)
            case Sync():
                syncs.add(unit_at[place])
            case Block():
                index = unit_at[place]
                assert item.plain_text == task.units[index].text
                assert item.topic == (topic or task.units[index].topic)
                blocks.add(index)
                place += len(item.plain_text)
    return blocks, syncs


def joined(task: Task, texts: list[str]) -> str:
    """Return the answer with other texts in place of its units'."""
    units = zip(task.units, texts, strict=True)
    return "".join((unit.before if i else "") + text for i, (unit, text) in enumerate(units))


def without(unit: Unit, value: str) -> str:
    """Return a unit's text without some words of it."""
    return re.sub(rf"(?<!\w){re.escape(value)}(?!\w) ?", "", unit.text)


def corrupted(text: str, random: Random) -> str:
    """Return a text with a few words deleted, swapped or repeated, digits changed, lines moved."""
    lines = [line.split(" ") for line in text.split("\n")]
    for _ in range(random.randint(1, 5)):
        line, other = random.choice(lines), random.choice(lines)
        here, there = random.randrange(len(line)), random.randrange(len(other))
        match random.choice(("delete", "swap", "repeat", "digit", "move")):
            case "delete" if len(line) > 1:
                del line[here]
            case "swap":
                line[here], other[there] = other[there], line[here]
            case "repeat":
                line.insert(here, other[there])
            case "digit":
                line[here] = re.sub(r"\d", lambda _: str(random.randrange(10)), line[here])
            case "move" if random.random() < 0.3:
                random.shuffle(lines)
    return "\n".join(" ".join(line) for line in lines)
