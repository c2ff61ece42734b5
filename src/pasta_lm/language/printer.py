"""Write an answer as text, in one of its forms; parse(print(x)) == x.

Writing is canonical: one spelling for every tag, whatever spelling was read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pasta_lm.language.events import Sync, Text
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    SYNC,
    annotator_open,
    escape,
    promise_tag,
)

if TYPE_CHECKING:
    from pasta_lm.language.document import Block, Document, Item


def written(document: Document) -> str:
    """Return the written form: every promise followed by its block.

    Raises:
        ValueError: a block has no length; ``Document.with_lengths`` fills them in.
    """
    return written_items(document.items)


def main_form(document: Document) -> str:
    """Return the main form: text, promises and syncs, no blocks.

    Raises:
        ValueError: a block has no length; ``Document.with_lengths`` fills them in.
    """
    return "".join(_main_item(item) for item in document.items)


def annotator_form(document: Document) -> str:
    """Return the annotator form: blocks that carry their topics, no lengths."""
    return _annotator_items(document.items)


def written_items(items: Iterable[Item]) -> str:
    """Return items in written form; those of a block give what stands between its tags."""
    return "".join(_written_item(item) for item in items)


def _written_item(item: Item) -> str:
    match item:
        case Text(text):
            return escape(text)
        case Sync():
            return SYNC
        case _:
            return f"{_promise(item)}{ASYNC_OPEN}{written_items(item.items)}{ASYNC_CLOSE}"


def _main_item(item: Item) -> str:
    match item:
        case Text(text):
            return escape(text)
        case Sync():
            return SYNC
        case _:
            return _promise(item)


def _annotator_items(items: Iterable[Item]) -> str:
    return "".join(_annotator_item(item) for item in items)


def _annotator_item(item: Item) -> str:
    match item:
        case Text(text):
            return escape(text)
        case Sync():
            return SYNC
        case _:
            return f"{annotator_open(item.topic)}{_annotator_items(item.items)}{ASYNC_CLOSE}"


def _promise(block: Block) -> str:
    if block.units is None:
        raise ValueError(f"the block {block.topic!r} has no length: call with_lengths first")
    return promise_tag(block.topic, block.units)
