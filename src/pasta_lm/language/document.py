"""An answer as a tree of text, blocks and syncs; written as text in three forms, and parsed back.

Writing is canonical: each tag has one spelling, however it was spelled when read, and
``parse(document.written())`` gives the document back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from pasta_lm.errors import PastaSyntaxError
from pasta_lm.language import tags
from pasta_lm.language.check import check, describe
from pasta_lm.language.events import AsyncClose, AsyncOpen, Event, Promise, Sync, Text
from pasta_lm.language.lexer import Lexer
from pasta_lm.language.parser import Form, Parser

NUM_BLOCK_TAGS = 2  # <async> and </async>, one token each, count as part of their block


@dataclass(frozen=True, slots=True)
class Block:
    """A promised block; ``units`` is its length in tens of tokens, None if it is unknown."""

    topic: str
    units: int | None
    items: tuple[Item, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", _merge(self.items))

    @property
    def plain_text(self) -> str:
        return "".join(_texts(self.items))


@dataclass(frozen=True, slots=True)
class Document:
    """A whole answer; equal answers are equal values, however their text was cut."""

    items: tuple[Item, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", _merge(self.items))

    @property
    def plain_text(self) -> str:
        """Return the text for a reader: the tags removed, and nothing else changed."""
        return "".join(_texts(self.items))

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(_blocks(self.items))

    @property
    def num_syncs(self) -> int:
        return sum(isinstance(item, Sync) for item in self.items)

    def written(self) -> str:
        """Return the written form; a ``ValueError`` if a block has no length."""
        return _written(self.items)

    def main_form(self) -> str:
        return _write(self.items, _promise)

    def annotator_form(self) -> str:
        return _write(self.items, _annotator_block)

    @property
    def program(self) -> str:
        """Return the written form; the annotator form where a block promised no length."""
        has_lengths = all(block.units is not None for block in self.blocks)
        return self.written() if has_lengths else self.annotator_form()

    def with_spaces_after_tags(self) -> Document:
        """Return the same answer with the spaces before a tag moved to the text after it."""
        return Document(_with_texts(self.items, tags.spaces_after_tags(list(_texts(self.items)))))

    def with_lengths(self, count: Callable[[str], int]) -> Document:
        """Return the answer with the length of each block; ``count`` gives tokens of a text."""
        return Document(_with_lengths(self.items, count))

    def without_tags(self) -> Document:
        return Document((Text(self.plain_text),))


Item = Text | Block | Sync


def parse(text: str, form: Form | str = Form.WRITTEN, max_depth: int = 1) -> Document:
    """Read an answer; in main form every block is empty, in annotator form none has a length.

    Raises:
        PastaSyntaxError: the text breaks the grammar; it names the first fault and its place.
    """
    lexer, parser = Lexer(), Parser(form, max_depth)
    try:
        lexemes = lexer.feed(text) + lexer.close()
        events = [event for lexeme in lexemes for event in parser.feed(lexeme)]
        return from_events(events + parser.close())
    except PastaSyntaxError as error:
        if Form(form) in (Form.BLOCK, Form.FORKED):
            raise  # ``check`` reads stored forms only
        first = next(x for x in check(text, form, max_depth) if x.severity == "error")
        raise PastaSyntaxError(describe(first, text), hint=first.hint) from error


def parse_program(text: str) -> Document:
    """Read a ``Document.program``; a fault is reported as one of the written form."""
    try:
        return parse(text)
    except PastaSyntaxError as error:
        try:
            return parse(text, Form.ANNOTATOR)
        except PastaSyntaxError:
            raise error from None


def from_events(events: Iterable[Event]) -> Document:
    """Build the answer that a parser reported; a block that was not closed ends with the events."""
    items: list[Item] = []
    promise: Promise | None = None
    outer: list[tuple[list[Item], Promise]] = []  # around the open blocks: items, and the promise
    for event in (*events, None):  # None: the end
        if promise is not None and not isinstance(event, AsyncOpen):  # main form: no block follows
            items.append(Block(promise.topic, promise.units))
            promise = None
        match event:
            case Promise():
                promise = event
            case AsyncOpen(topic):
                outer.append((items, promise or Promise(topic or "", None)))
                items, promise = [], None
            case AsyncClose() if outer:  # else a block's own thread, which ends with its block
                items = _close(items, outer)
            case Text() | Sync():
                items.append(event)
    while outer:
        items = _close(items, outer)
    return Document(tuple(items))


def _close(items: list[Item], outer: list[tuple[list[Item], Promise]]) -> list[Item]:
    around, promise = outer.pop()
    return [*around, Block(promise.topic, promise.units, tuple(items))]


def _merge(items: Iterable[Item]) -> tuple[Item, ...]:
    merged: list[Item] = []
    for is_text, run in groupby(items, lambda item: isinstance(item, Text)):
        if not is_text:
            merged += run
        elif text := "".join(_texts(run)):
            merged.append(Text(text))
    return tuple(merged)


def _texts(items: Iterable[Item]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Text):
            yield item.text
        elif isinstance(item, Block):
            yield from _texts(item.items)


def _with_texts(items: Iterable[Item], texts: Iterator[str]) -> tuple[Item, ...]:
    def changed(item: Item) -> Item:
        if isinstance(item, Text):
            return Text(next(texts))
        if isinstance(item, Block):
            return replace(item, items=_with_texts(item.items, texts))
        return item

    return tuple(map(changed, items))


def _blocks(items: tuple[Item, ...]) -> Iterator[Block]:
    for item in items:
        if isinstance(item, Block):
            yield item
            yield from _blocks(item.items)


def _with_lengths(items: tuple[Item, ...], count: Callable[[str], int]) -> tuple[Item, ...]:
    def changed(item: Item) -> Item:
        if not isinstance(item, Block):
            return item
        inside = _with_lengths(item.items, count)  # inner lengths are part of the outer text
        units = tags.units_for(count(_written(inside)) + NUM_BLOCK_TAGS)
        return replace(item, units=units, items=inside)

    return tuple(map(changed, items))


def _write(items: Iterable[Item], write_block: Callable[[Block], str]) -> str:
    def written(item: Item) -> str:
        if isinstance(item, Text):
            return tags.escape(item.text)
        return tags.SYNC if isinstance(item, Sync) else write_block(item)

    return "".join(map(written, items))


def _written(items: Iterable[Item]) -> str:
    return _write(
        items,
        lambda block: _promise(block) + tags.ASYNC_OPEN + _written(block.items) + tags.ASYNC_CLOSE,
    )


def _annotator_block(block: Block) -> str:
    inside = _write(block.items, _annotator_block)
    return tags.annotator_open(block.topic) + inside + tags.ASYNC_CLOSE


def _promise(block: Block) -> str:
    if block.units is None:
        raise ValueError(f"the block {block.topic!r} has no length: call with_lengths first")
    return tags.promise_tag(block.topic, block.units)
