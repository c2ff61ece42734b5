"""A decoding thread: its state, its place among the threads, its content.

The interpreter changes its state, the placer its position, row and depth; what an engine keeps
beside it is in ``engines.live_thread``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.visibility import Row
from pasta_lm.language.document import Block, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.parser import Parser
from pasta_lm.language.tags import TOKENS_PER_UNIT


class ThreadState(Enum):
    """The state of a thread."""

    DEFERRED = "deferred"  # promised, but not started: too many others decode
    RUNNING = "running"  # it decodes one token in every pass
    WAITING = "waiting"  # it decoded ``<sync/>`` and waits for its pending blocks
    ENDED = "ended"  # it will decode no more


@dataclass(frozen=True, slots=True)
class Placement:
    """Slot, position and depth of one fed token."""

    slot: int
    position: int
    depth: int  # length of the longest chain of tokens that must be decoded one by one


@dataclass(slots=True, eq=False)
class Thread:
    """One decoding thread of a response."""

    id: int  # 0 is main; children count on in the order of their promises
    owner: int  # owner number of its next entries, unique within the request
    parser: Parser  # where it stands in the grammar of its own stream
    parent: Thread | None = None
    path: tuple[int, ...] = ()  # its place in document order: main is (), its k-th child (k,)
    topic: str | None = None
    units: int | None = None  # the promised length in units of ten tokens
    state: ThreadState = ThreadState.RUNNING
    finish_reason: FinishReason | None = None
    num_prefix: int = 0  # tokens fed before it decodes: ``<async>``, or the suffix of a point
    num_tokens: int = 0  # tokens decoded, tags and prefix included, end-of-text not
    num_at_fork: int | None = None  # those of them up to its last fork
    block_length: int | None = None  # true length with tags, if known beforehand (replay)
    after: tuple[Thread, ...] = ()  # threads that end before it begins

    children: list[Thread] = field(default_factory=list)
    unjoined: list[Thread] = field(default_factory=list)  # children that no sync has joined yet
    content: list[str | Thread | Sync] = field(default_factory=list)
    """Its text, children and syncs in document order."""

    num_topic_tokens: int | None = None  # tokens of the topic so far; None outside promises
    has_topic_text: bool = False  # whether that topic has a character other than space

    row: Row | None = None
    position: int = 0  # where its next token will stand
    depth: int = 0  # depth of the last token that it fed; 0 before the first
    fork_point: Placement | None = None  # the end of its promise: it begins behind it

    @property
    def is_main(self) -> bool:
        return self.parent is None

    @property
    def is_alive(self) -> bool:
        return self.state is not ThreadState.ENDED

    @property
    def is_pending(self) -> bool:
        return self.is_alive or any(child.is_pending for child in self.children)

    @property
    def promised_tokens(self) -> int | None:
        return None if self.units is None else TOKENS_PER_UNIT * self.units

    @property
    def in_topic(self) -> bool:
        return self.num_topic_tokens is not None

    @property
    def reading_key(self) -> tuple[float, ...]:
        """Return a key that sorts threads by where their *next* token stands in the answer."""
        return (*self.path, float("inf"))

    def items(self, until: tuple[int, ...] = ()) -> tuple[Item, ...]:
        """Return its content as items of a document, up to the end of the thread at a path in it.

        A thread without a topic decodes the answer itself: it is no block of it.
        """
        items: list[Item] = []
        for piece in self.content:
            match piece:
                case Thread():
                    is_last = piece.path == until[: len(piece.path)]
                    inner = piece.items(until if is_last else ())
                    items += (
                        inner if piece.topic is None else [Block(piece.topic, piece.units, inner)]
                    )
                    if is_last:
                        break
                case Sync():
                    items.append(piece)
                case _:
                    items.append(Text(piece))
        return tuple(items)


def descendants(threads: Iterable[Thread]) -> Iterator[Thread]:
    """Yield threads and all that they forked, each before its own."""
    for thread in threads:
        yield thread
        yield from descendants(thread.children)
