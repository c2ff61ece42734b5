"""Where each token of an answer stands and what it sees, said a second time and another way.

Everything is worked out from the written form alone: no slots, no passes, no rows. What the
interpreter and the placement make while decoding must agree with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import TOKENS_PER_UNIT

PROMPT = -1

Name = tuple[int, int]
"""A token by its thread (0 main, k the k-th block, -1 the prompt) and its index in that thread."""


def numbered(threads: Iterable[int]) -> list[Name]:
    """Name tokens, given by their threads in the order of feeding, by their index there."""
    count: Counter[int] = Counter()
    names = []
    for thread in threads:
        names.append((thread, count[thread]))
        count[thread] += 1
    return names


class Shape(NamedTuple):
    """What the layout of an answer depends on."""

    num_prompt: int
    main: Sequence[Lexeme]
    block_lengths: Sequence[int]
    """Words of each block, without ``<async>`` and ``</async>``."""


class Place(NamedTuple):
    """One token: where it is fed, and what it sees, itself included."""

    position: int
    sees: frozenset[Name]


@dataclass
class _Writer:
    """Writes an answer from its beginning to its end."""

    strategy: PositionStrategy
    places: dict[Name, Place] = field(default_factory=dict)
    visible: set[Name] = field(default_factory=set)
    """What main sees."""
    hidden: set[Name] = field(default_factory=set)
    """Tokens of blocks that no sync has joined."""
    position: int = 0
    """Where main's next token stands."""

    def write(self, name: Name) -> None:
        self.visible.add(name)
        self.places[name] = Place(self.position, frozenset(self.visible))
        self.position += 1

    def block(self, number: int, num_words: int, units: int) -> None:
        end, before = self.position - 1, frozenset(self.visible)
        names = [(number, index) for index in range(num_words + 2)]
        for index, name in enumerate(names):
            self.places[name] = Place(end + 1 + index, before | frozenset(names[: index + 1]))
        self.hidden.update(names)
        if self.strategy is PositionStrategy.ORACLE:
            self.position += num_words + 2
        elif self.strategy is not PositionStrategy.CONTINUE:
            self.position += TOKENS_PER_UNIT * units

    def sync(self) -> None:
        self.visible |= self.hidden
        self.hidden.clear()
        if self.strategy is PositionStrategy.CONTINUE:
            self.position = 1 + max(self.places[name].position for name in self.visible)


def reference(shape: Shape, strategy: PositionStrategy) -> dict[Name, Place]:
    """Return the place of every token, the prompt's too."""
    writer = _Writer(strategy)
    for index in range(shape.num_prompt):
        writer.write((PROMPT, index))
    num_blocks = 0
    for index, lexeme in enumerate(shape.main):
        if lexeme.kind is LexemeKind.SYNC:
            writer.sync()
        writer.write((0, index))
        if lexeme.kind is LexemeKind.PROMISE_CLOSE:
            num_words = shape.block_lengths[num_blocks]
            num_blocks += 1
            writer.block(num_blocks, num_words, lexeme.units or 0)
    return writer.places


def critical_path(shape: Shape) -> int:
    """Return the length of the longest chain of tokens that are fed one after another.

    What is decoded last is never fed: an end-of-text, the ``</async>`` of the block that is last.
    """
    depth = longest = num_blocks = 0
    pending: list[int] = []  # the depth of each unjoined block's last word
    for lexeme in shape.main:
        depth += 1
        if lexeme.kind is LexemeKind.SYNC:
            depth = max([depth, *(last + 1 for last in pending)])
            pending.clear()
        if lexeme.kind is LexemeKind.PROMISE_CLOSE:
            pending.append(depth + shape.block_lengths[num_blocks])
            num_blocks += 1
        longest = max(longest, depth)
    return max([longest, *pending])


def is_visible(entries: Entries, query_slot: int, slot: int) -> bool:
    """Return whether the query in one slot saw the entry in another when it was fed."""
    row, owner = entries[query_slot].row, entries[slot].owner
    return row.sees(query_slot=query_slot, entry_slot=slot, entry_owner=owner)
