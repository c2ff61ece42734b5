"""Compare the answers of two engines choice by choice.

A choice is a token and all that its thread saw when it was chosen. Where two engines saw the same
and chose otherwise they differ; what follows from there is no comparison any more. Holds for
positions ``continue`` with join ``recompute``, where all that a thread sees is one plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pasta_lm.language.lexer import LexemeKind
from pasta_lm.models.vocabulary import Vocabulary

Threads = Sequence[Sequence[int]]
"""The ids that each thread decoded, main's first, blocks in the order of their promises."""
Place = tuple[int, int]
"""A thread and the index of a token in it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A token and what was seen before it."""

    context: tuple[int, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """The choices of two engines with the same context, and those of them that differ."""

    num_compared: int
    differing: Mapping[Place, tuple[Choice, Choice]]
    is_whole: bool  # every choice was compared and none differs: the answers are the same


def choices(vocabulary: Vocabulary, prompt: Sequence[int], threads: Threads) -> dict[Place, Choice]:
    """Return every choice of an answer; the forced ``<async>`` of a block is none."""
    found: dict[Place, Choice] = {}
    context, num_blocks = tuple(prompt), 0
    pending: list[tuple[int, tuple[int, ...]]] = []  # each unjoined block, and its place
    for index, token in enumerate(threads[0]):
        found[0, index] = Choice(context, token)
        lexeme = vocabulary.id_to_lexeme(token)
        kind = None if lexeme is None else lexeme.kind
        if kind is LexemeKind.SYNC:
            for place, block in reversed(pending):
                context = context[:place] + block + context[place:]
            pending.clear()
        context = (*context, token)
        if kind is LexemeKind.PROMISE_CLOSE and num_blocks + 1 < len(threads):
            num_blocks += 1
            block = tuple(threads[num_blocks])
            pending.append((len(context), block))
            for place in range(1, len(block)):
                found[num_blocks, place] = Choice(context + block[:place], block[place])
    return found


def agreement(ours: Mapping[Place, Choice], theirs: Mapping[Place, Choice]) -> Agreement:
    """Compare the choices that were made behind the same context."""
    both = [place for place in ours if place in theirs]
    same = [place for place in both if ours[place].context == theirs[place].context]
    differing = {
        place: (ours[place], theirs[place])
        for place in same
        if ours[place].token != theirs[place].token
    }
    is_whole = not differing and len(same) == len(ours) == len(theirs)
    return Agreement(len(same), differing, is_whole)
