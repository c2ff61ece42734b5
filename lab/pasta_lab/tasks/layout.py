"""Annotate plain answers by rules that read the layout alone."""

from __future__ import annotations

import re
from collections.abc import Collection

from pasta_lab.tasks.formats import CHAIN_LABEL, FREE_LABEL
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.learn.data.layout import MIN_BLOCK_WORDS, MIN_BLOCKS, Layout, Stretch, parts, rest

MARKED = frozenset({Layout.ITEM, Layout.SECTION, Layout.BOLD, Layout.ROW})
"""What Markdown sets apart."""
EVERY_LINE = MARKED | {Layout.LINE}

_LINE_GAP = re.compile(r"(\s*\n\s*)")
_SENTENCE_GAP = re.compile(r"((?<=[.!?])[ \t]+(?=[A-Z][^:.!?\n]{0,50}:\s))")
"""The space before an item of a paragraph, which begins with a name and a colon: "For Ada: "."""


def rule_document(text: str, layouts: Collection[Layout] = MARKED) -> Document:
    """Return an answer with its set-apart parts as blocks and a sync before its conclusion.

    A conclusion is a part after a block that begins like one ("Overall") or, where lines are not
    set apart themselves, the last line. The conclusion and everything after it are no blocks.
    """
    found = parts(text)
    blocks = [index for index, part in enumerate(found) if _is_block(part, layouts)]
    if len(blocks) < MIN_BLOCKS:
        return Document((Text(text),))
    end = _conclusion(found, blocks[0], layouts)
    kept = {index for index in blocks if index < end}
    if len(kept) < MIN_BLOCKS:
        kept, end = set(), len(found)
    items: list[Item] = []
    for index, part in enumerate(found):
        items.append(Text(part.before))
        if index == end:
            items.append(Sync())
        inner = Text(part.text)
        items.append(Block(part.topic, None, (inner,)) if index in kept else inner)
    return Document((*items, Text(rest(text, found))))


def label_document(text: str) -> Document:
    """Return an answer forked as its label says; without a label, by the rule for every line.

    After ``FREE_LABEL`` every item is a block, after ``CHAIN_LABEL`` none is.
    """
    if text.startswith(CHAIN_LABEL):
        return Document((Text(text),))
    if not text.startswith(FREE_LABEL):
        return rule_document(text, EVERY_LINE)
    gap = _LINE_GAP if "\n" in text.strip() else _SENTENCE_GAP
    label, *others = gap.split(text)
    items: list[Item] = [Text(label)]
    for one in others:
        topic = parts(one)[0].topic if one.strip() else ""
        items.append(Block(topic, None, (Text(one),)) if topic else Text(one))
    document = Document(tuple(items))
    return document if len(document.blocks) >= MIN_BLOCKS else document.without_tags()


def _is_block(part: Stretch, layouts: Collection[Layout]) -> bool:
    is_long = len(part.text.split()) >= MIN_BLOCK_WORDS
    return part.layout in layouts and is_long and bool(part.topic) and not part.is_conclusion


def _conclusion(found: list[Stretch], first_block: int, layouts: Collection[Layout]) -> int:
    """Return the index of the concluding part; the number of parts if there is none."""
    for index in range(first_block + 1, len(found)):
        is_last = index == len(found) - 1
        is_plain = Layout.LINE not in layouts and found[index].layout is Layout.LINE
        if found[index].is_conclusion or (is_last and is_plain):
            return index
    return len(found)
