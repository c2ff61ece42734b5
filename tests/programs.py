"""Random answers as token ids: promises, syncs, empty blocks, long blocks, blocks left pending."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import PROMISE_OPEN, SYNC, closing_piece, unescape_topic
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.models.vocabulary import Vocabulary
from tests.reference import Shape


@dataclass(frozen=True)
class Program:
    """A prompt and an answer to decode after it."""

    prompt: tuple[int, ...]
    answer: EncodedDocument

    def shape(self, vocabulary: Vocabulary) -> Shape:
        """Return what its layout depends on."""
        text = Lexeme(LexemeKind.TEXT)
        main = [vocabulary.id_to_lexeme(token) or text for token in self.answer.main]
        return Shape(len(self.prompt), main, [len(words) for words in self.answer.blocks])


class Words(NamedTuple):
    """Ordinary ids of a vocabulary: those for text, and those that a topic may consist of."""

    text: Sequence[int]
    topic: Sequence[int]


@cache
def words_of(vocabulary: Vocabulary) -> Words:
    """Return the ids from which random programs are made."""
    text = [i for i in range(vocabulary.num_tokens) if vocabulary.token_text(i).strip()]
    allowed = vocabulary.non_space - vocabulary.topic_forbidden
    return Words(text, [i for i in text if i in allowed])


def random_program(
    rng: random.Random, vocabulary: Vocabulary, *, num_parts: int | None = None
) -> Program:
    """Return a prompt of 1 to 24 tokens and an answer of up to ``num_parts`` texts and tags."""
    words = words_of(vocabulary)
    main: list[int] = []
    blocks: list[tuple[int, ...]] = []
    num_unjoined = 0
    for _ in range(num_parts or rng.randint(2, 11)):
        kind = rng.choices(["text", "promise", "sync"], [4, 5, 3 if num_unjoined else 0.2])[0]
        if kind == "text":
            main += rng.choices(words.text, k=rng.randint(1, 6))
        elif kind == "promise":
            topic = rng.choices(words.topic, k=rng.randint(1, 3))
            closing = vocabulary.piece_id(closing_piece(rng.choice([1, 1, 1, 2, 2, 3, 5])))
            main += [vocabulary.piece_id(PROMISE_OPEN), *topic, closing]
            num_words = rng.choice([0, 1, 2, 3, rng.randint(4, 12), rng.randint(4, 12), 25])
            blocks.append(tuple(rng.choices(words.text, k=num_words)))
            num_unjoined += 1
        else:
            main.append(vocabulary.piece_id(SYNC))
            num_unjoined = 0
    prompt = tuple(rng.choices(words.text, k=rng.choice([1, 2, 3, 5, 9, 17, 24])))
    return Program(prompt, EncodedDocument(tuple(main), tuple(blocks)))


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
