"""Read off a task and its annotations what the tests compare: places, deletions, corruptions."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules
from random import Random

from pasta_lm.language.document import Block, Document
from pasta_lm.language.events import Sync, Text
from pasta_lm.tasks import Task, Unit, families
from pasta_lm.tasks.draw import Wordings
from pasta_lm.tasks.formats import REQUESTS


def every_wording() -> dict[str, Wordings[object]]:
    """Return the wordings of all families that training may see, by module and name."""
    found = {f"formats.{form}": asked for form, asked in REQUESTS.items()}
    for module in iter_modules(families.__path__):
        if module.name != "held_out":  # its families are in no training, whatever they say
            for name, value in vars(import_module(f"{families.__name__}.{module.name}")).items():
                if isinstance(value, Wordings):
                    found[f"{module.name}.{name}"] = value
    return found


def sides(option: object) -> tuple[str, ...]:
    """Return the sentences of one wording: one, or those of both sides of a minimal pair."""
    return (option,) if isinstance(option, str) else tuple(option)  # type: ignore[arg-type]


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
