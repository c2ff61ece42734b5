"""Random answers as token ids, and where each of their tokens must stand, said a second time.

``reference`` works out positions and visibility of an answer from its written form alone: no
slots, no steps, no threads. What the interpreter and the placement make while decoding must agree.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from pasta_lm.engines.encoded_document import EncodedDocument
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.interpreter import PositionStrategy
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    PROMISE_OPEN,
    SYNC,
    TOKENS_PER_UNIT,
    closing_piece,
)


@dataclass(frozen=True)
class Program:
    """A prompt and an answer to decode after it."""

    prompt: tuple[int, ...]
    answer: EncodedDocument


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


class Place(NamedTuple):
    """One token of the written form."""

    token: int
    thread: int
    """0 is main, k the block of the k-th promise; the prompt is -1."""
    index: int
    """Which token of its thread it is."""
    position: int
    sees: frozenset[int]
    """Places of the written form that it sees, itself included."""


class Block(NamedTuple):
    """One block of the written form: where it begins and what surrounds it."""

    thread: int
    places: range


def reference(program: Program, vocabulary: Vocabulary, strategy: PositionStrategy) -> list[Place]:
    """Return the whole answer in the written form, prompt first, by the rules of the language.

    With ``rotate`` a token stands where it is fed, before any later sync moves it.
    """
    lexeme = vocabulary.id_to_lexeme
    written = [Place(t, -1, i, i, frozenset(range(i + 1))) for i, t in enumerate(program.prompt)]
    visible = set(range(len(written)))  # what main sees
    hidden: list[int] = []  # blocks that no sync has joined
    next_position = len(written)
    num_blocks = 0
    for index, token in enumerate(program.answer.main):
        kind = lexeme(token)
        if token == vocabulary.piece_id(SYNC):
            visible.update(hidden)
            hidden.clear()
            next_position = _at_sync(strategy, next_position, [written[i] for i in visible])
        visible.add(len(written))
        written.append(Place(token, 0, index, next_position, frozenset(visible)))
        if kind is None or kind.units is None:
            next_position += 1
            continue
        words = program.answer.blocks[num_blocks]
        num_blocks += 1
        first, last = vocabulary.piece_id(ASYNC_OPEN), vocabulary.piece_id(ASYNC_CLOSE)
        end, before = written[-1].position, frozenset(visible)
        inside: list[int] = []
        for offset, word in enumerate((first, *words, last)):
            inside.append(len(written))
            sees = before | frozenset(inside)
            written.append(Place(word, num_blocks, offset, end + 1 + offset, sees))
        hidden += inside
        gap = {
            PositionStrategy.CONTINUE: 0,
            PositionStrategy.ORACLE: len(words) + 2,
        }.get(strategy, TOKENS_PER_UNIT * kind.units)
        next_position = end + 1 + gap
    return written


def _at_sync(strategy: PositionStrategy, running: int, visible: Sequence[Place]) -> int:
    if strategy is PositionStrategy.ROTATE:
        return len(visible)
    if strategy is PositionStrategy.CONTINUE:
        return max(place.position for place in visible) + 1
    return running


def critical_path(program: Program, vocabulary: Vocabulary) -> int:
    """Return the length of the longest chain of tokens that must be fed one after another.

    The last token of main, and the ``</async>`` of blocks that nothing joins, may never be fed:
    what is decoded last is not counted.
    """
    depth = longest = num_blocks = 0
    pending: list[int] = []  # depth of each unjoined block's last content token
    for token in program.answer.main:
        depth += 1
        if token == vocabulary.piece_id(SYNC):
            depth = max([depth, *(end + 1 for end in pending)])
            pending.clear()
        lexeme = vocabulary.id_to_lexeme(token)
        if lexeme is not None and lexeme.units is not None:
            pending.append(depth + len(program.answer.blocks[num_blocks]))
            num_blocks += 1
        longest = max(longest, depth)
    return max([longest, *pending])
