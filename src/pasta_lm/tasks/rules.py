"""Annotate an answer by a hand-written rule that reads its layout alone, whatever was asked.

``rule`` is the rule of rule-pasta: what Markdown sets apart becomes a block. ``rule_lines`` is the
same rule at its most generous: lines that stand alone are set apart too.
"""

from __future__ import annotations

from collections.abc import Collection

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.tasks.layout import Layout, Part, parts, rest

MARKED = frozenset({Layout.ITEM, Layout.SECTION, Layout.BOLD, Layout.ROW})
"""What Markdown sets apart."""
LEAST_WORDS = 5
"""Of a block: the paper's annotator keeps the same bound (PASTA, appendix on annotation)."""
LEAST_BLOCKS = 2
"""Alone, a block runs beside nothing."""


def rule_document(text: str, layouts: Collection[Layout] = MARKED) -> Document:
    """Return an answer with its set-apart parts as blocks and a sync before its conclusion.

    A conclusion is a part behind a block that says so with its first words, or the last line where
    lines are not set apart themselves. It is no block, and neither is anything behind it.

    Args:
        text: The plain answer.
        layouts: What counts as set apart.
    """
    found = parts(text)
    blocks = [index for index, part in enumerate(found) if _is_block(part, layouts)]
    if len(blocks) < LEAST_BLOCKS:
        return Document((Text(text),))
    end = _conclusion(found, blocks[0], layouts)
    kept = {index for index in blocks if index < end}
    if len(kept) < LEAST_BLOCKS:
        kept, end = set(), len(found)
    items: list[Item] = []
    for index, part in enumerate(found):
        items.append(Text(part.before))
        if index == end:
            items.append(Sync())
        inner = Text(part.text)
        items.append(Block(part.topic, None, (inner,)) if index in kept else inner)
    return Document((*items, Text(rest(text, found))))


def _is_block(part: Part, layouts: Collection[Layout]) -> bool:
    is_long = part.num_words >= LEAST_WORDS
    return part.layout in layouts and is_long and bool(part.topic) and not part.is_conclusion


def _conclusion(found: list[Part], first_block: int, layouts: Collection[Layout]) -> int:
    """Return the index of the part that concludes; where there is none, of the end."""
    for index in range(first_block + 1, len(found)):
        is_last = index == len(found) - 1
        is_plain = Layout.LINE not in layouts and found[index].layout is Layout.LINE
        if found[index].is_conclusion or (is_last and is_plain):
            return index
    return len(found)
