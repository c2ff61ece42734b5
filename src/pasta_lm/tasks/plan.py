"""From units that know what they need to the answer in PASTA-LANG.

The one definition of the gold structure: a unit that pays becomes a block, and a sync stands where
the next unit needs a block that is not joined yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.tasks.task import Unit


def plan(units: Sequence[Unit], preface: str = "") -> Document:
    """Return the answer with every block and sync that its dependencies allow and ask for.

    Args:
        units: The parts of the answer.
        preface: What stands in front of them.

    Raises:
        ValueError: a unit needs itself or a later one.
    """
    blocks = [index for index, unit in enumerate(units) if unit.fork]
    return write(units, blocks, needed_syncs(units, blocks), preface)


def needed_syncs(units: Sequence[Unit], blocks: Collection[int]) -> list[int]:
    """Return the units in front of which a sync must stand if these units are blocks."""
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
    """Return the answer with these units as blocks and a sync in front of those.

    A sync that has nothing to join is left out. White space stays in front of a sync: what needs
    the blocks is the text of the unit.
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
