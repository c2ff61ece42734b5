"""Decode the token ids of an answer: the inverse of ``Vocabulary.encode_document``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import unescape_topic
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.models.vocabulary import Vocabulary


def decode_document(vocabulary: Vocabulary, encoded: EncodedDocument) -> Document:
    """Return the answer that token ids spell, every promise with its block."""
    return Document(_items(vocabulary, encoded.main, iter(encoded.blocks)))


def _items(
    vocabulary: Vocabulary, token_ids: Sequence[int], blocks: Iterator[tuple[int, ...]]
) -> tuple[Item, ...]:
    items: list[Item] = []
    topic: str | None = None
    for lexeme in _lexemes(vocabulary, token_ids):
        match lexeme.kind:
            case LexemeKind.PROMISE_OPEN:
                topic = ""
            case LexemeKind.TEXT if topic is not None:
                topic = unescape_topic(lexeme.text)
            case LexemeKind.PROMISE_CLOSE:
                inside = _items(vocabulary, next(blocks), blocks)
                items.append(Block(topic or "", lexeme.units, inside))
                topic = None
            case LexemeKind.TEXT:
                items.append(Text(lexeme.text))
            case LexemeKind.SYNC:
                items.append(Sync())
    return tuple(items)


def _lexemes(vocabulary: Vocabulary, token_ids: Sequence[int]) -> Iterator[Lexeme]:
    stretch: list[int] = []
    for token_id in token_ids:
        tag = vocabulary.id_to_lexeme(token_id)
        if tag is None:
            stretch.append(token_id)
            continue
        if text := vocabulary.text(stretch):
            yield Lexeme(LexemeKind.TEXT, text)
        yield tag
        stretch = []
    if text := vocabulary.text(stretch):
        yield Lexeme(LexemeKind.TEXT, text)
