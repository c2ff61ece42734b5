"""An answer as token ids, and back: every stretch between two tags encoded alone.

Knows the order of pieces in an answer; how text is encoded comes in as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pasta_lm.engines.piece_table import PieceTable
from pasta_lm.errors import VocabularyError
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import (
    MAX_UNITS,
    PROMISE_OPEN,
    SYNC,
    closing_piece,
    escape_topic,
    unescape_topic,
    units_for,
)

NUM_BLOCK_TAGS = 2
"""``<async>`` and ``</async>`` count as tokens of their block."""


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """An answer as token ids: what main decodes, and what each block's thread decodes."""

    main: tuple[int, ...]
    """The main form: text, promises with their topics, syncs."""
    blocks: tuple[tuple[int, ...], ...]
    """In document order, each without its ``<async>`` and ``</async>``."""

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the written form has."""
        return len(self.main) + sum(len(ids) + NUM_BLOCK_TAGS for ids in self.blocks)


class DocumentEncoder:
    """Encodes one answer; its blocks gather here in document order."""

    def __init__(
        self,
        pieces: PieceTable,
        encode_text: Callable[[str], list[int]],
        form: Form = Form.MAIN,
    ) -> None:
        """Begin with no blocks; the form is MAIN, or FORKED."""
        self._form = form
        self._pieces = pieces
        self._encode_text = encode_text
        self._blocks: list[tuple[int, ...]] = []

    def encode(self, document: Document) -> EncodedDocument:
        """Return the answer's ids."""
        main = tuple(self._encode_items(document.items))
        return EncodedDocument(main, tuple(self._blocks))

    def _encode_items(self, items: Iterable[Item]) -> Iterator[int]:
        for item in items:
            match item:
                case Text(text):
                    yield from self._encode_text(text)
                case Sync() if self._form is Form.FORKED:
                    raise VocabularyError("the forked form has no sync")
                case Sync():
                    yield self._pieces[SYNC]
                case Block():
                    yield from self._encode_promise(item)

    def _encode_promise(self, block: Block) -> Iterator[int]:
        """Yield a block's promise; the block itself joins the others, before those in it."""
        place = len(self._blocks)
        self._blocks.append(())
        self._blocks[place] = tuple(self._encode_items(block.items))
        length = sum(len(ids) + NUM_BLOCK_TAGS for ids in self._blocks[place:])
        units = units_for(length) if block.units is None else block.units
        yield self._pieces[PROMISE_OPEN]
        if self._form is Form.FORKED:
            return
        yield from self._encode_text(escape_topic(block.topic))
        yield self._pieces[closing_piece(min(units, MAX_UNITS))]


def lexemes(
    token_ids: Iterable[int], pieces: PieceTable, text: Callable[[Sequence[int]], str]
) -> Iterator[Lexeme]:
    """Yield the tags that ids hold, and the text between them; topics unescaped."""
    stretch: list[int] = []
    read: Callable[[str], str] = str
    for token_id in token_ids:
        tag = pieces.lexeme(token_id)
        if tag is None:
            stretch.append(token_id)
            continue
        yield from _text_lexeme(read(text(stretch)))
        yield tag
        stretch = []
        read = unescape_topic if tag.kind is LexemeKind.PROMISE_OPEN else str
    yield from _text_lexeme(read(text(stretch)))


def _text_lexeme(text: str) -> Iterator[Lexeme]:
    if text:
        yield Lexeme(LexemeKind.TEXT, text)


def decode(encoded: EncodedDocument, read: Callable[[Sequence[int]], Iterator[Lexeme]]) -> Document:
    """Return the answer that ids spell, every promise with its block."""
    return Document(_decode_items(encoded.main, iter(encoded.blocks), read))


def _decode_items(
    token_ids: Sequence[int],
    blocks: Iterator[tuple[int, ...]],
    read: Callable[[Sequence[int]], Iterator[Lexeme]],
) -> tuple[Item, ...]:
    items: list[Item] = []
    topic: str | None = None
    for lexeme in read(token_ids):
        match lexeme.kind:
            case LexemeKind.PROMISE_OPEN:
                topic = ""
            case LexemeKind.TEXT if topic is not None:
                topic = lexeme.text
            case LexemeKind.PROMISE_CLOSE:
                inside = _decode_items(next(blocks), blocks, read)
                items.append(Block(topic or "", lexeme.units, inside))
                topic = None
            case LexemeKind.TEXT:
                items.append(Text(lexeme.text))
            case LexemeKind.SYNC:
                items.append(Sync())
    return tuple(items)
