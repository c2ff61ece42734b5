"""From units that know what they need to the answer in PASTA-LANG, and to its best speedup.

The one definition of the gold structure: a unit that pays becomes a block, and a sync stands where
the next unit needs a block that is not joined yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.tasks.task import Unit


def plan(units: Sequence[Unit]) -> Document:
    """Return the answer with every block and sync that its dependencies allow and ask for.

    Raises:
        ValueError: a unit needs itself or a later one.
    """
    blocks = [index for index, unit in enumerate(units) if unit.fork]
    return write(units, blocks, needed_syncs(units, blocks))


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


def write(units: Sequence[Unit], blocks: Collection[int], syncs: Collection[int]) -> Document:
    """Return the answer with these units as blocks and a sync in front of those.

    A sync that has nothing to join is left out. White space stays in front of a sync: what needs
    the blocks is the text of the unit.
    """
    items: list[Item] = []
    has_unjoined = False
    for index, unit in enumerate(units):
        items.append(Text(unit.before if index else ""))
        if index in syncs and has_unjoined:
            items.append(Sync())
            has_unjoined = False
        text = Text(unit.text)
        items.append(Block(unit.topic, None, (text,)) if index in blocks else text)
        has_unjoined |= index in blocks
    return Document(tuple(items))


def best_speedup(document: Document, count: Callable[[str], int]) -> float:
    """Return the theoretical speedup of an answer against its own text without tags.

    Args:
        document: An answer of depth 1.
        count: Returns how many tokens a text has.

    Returns:
        Tokens of the plain answer over tokens of the critical path, tags counted (PASTA,
        section 5), with as many threads as the answer asks for.
    """
    return max(count(document.plain_text), 1) / max(critical_path(document, count), 1)


def critical_path(document: Document, count: Callable[[str], int]) -> int:
    """Return the longest chain of tokens that must be decoded one after another."""
    main, pending, ends = 0, 0, 0
    for item in document.items:
        if isinstance(item, Text):
            main += count(item.text)
        elif isinstance(item, Sync):
            main = max(main, pending) + 1
            pending = 0
        else:
            main += 2 + count(item.topic)
            pending = max(pending, main + count(item.plain_text))
            ends = max(ends, pending)
    return max(main, ends)
