"""The threads of a running response, and what an engine keeps beside them between two passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from pasta_lm.engines import TokenText
from pasta_lm.engines.request import Expansion, Start, StructuredOutputs
from pasta_lm.interpreter.commands import Command
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.placement import Placer
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.models.text_stream import StopWatch

if TYPE_CHECKING:
    from pasta_lm.engines.local.grammars import Matcher


MatcherOf = Callable[[StructuredOutputs], "Matcher"]


class Special(Enum):
    """A decoded outcome that has no token id."""

    END_OF_TEXT = "end of text"


END_OF_TEXT: Final = Special.END_OF_TEXT


@dataclass(slots=True, eq=False)
class LiveThread:
    """A thread and what the engine keeps beside it."""

    thread: Thread
    text: TokenText
    stops: StopWatch
    forced: Iterator[int] | None = None  # ids to decode instead of sampled ones
    next_token: int | None = None  # the decoded token that it feeds next
    prefix: Sequence[int] = ()  # fed in front of ``next_token``, in the same pass; not decoded
    guesses: Sequence[int] = ()  # fed behind it, in the same pass: right if decoded then
    promised: Thread | None = None  # the thread that ``next_token`` forks
    joined: tuple[Thread, ...] | None = None  # the threads that ``next_token``, a sync, joins
    max_tokens: int | None = None  # of it alone
    stops_alone: bool = False  # its stop strings end it, and not the answer
    matcher: Matcher | None = None  # of the schema that its text must match
    is_held: bool = False  # another thread of the response goes first; it stays out of the pass

    def ends_behind(self, token: int) -> bool:
        """Take a decoded token; return whether it is the last one by its start or its schema."""
        if self.matcher is not None:
            self.matcher.consume(token)
        is_matched = self.matcher is not None and self.matcher.is_complete
        return is_matched or self.is_full or (self.stops_alone and self.stops.has_matched)

    @property
    def is_full(self) -> bool:
        return self.max_tokens is not None and self.thread.num_tokens >= self.max_tokens

    @property
    def feeds_next(self) -> bool:
        return self.next_token is not None and self.thread.state is not ThreadState.WAITING

    @property
    def decodes(self) -> bool:
        return self.thread.state is ThreadState.RUNNING


def expand(
    expansion: Expansion, interpreter: Interpreter, placer: Placer
) -> tuple[list[Command], dict[int, Start]]:
    """End main and start the threads that write the answer, by id; if none, it is main's text."""
    main, limits = interpreter.main, interpreter.limits
    starts = expansion.starts("".join(part for part in main.content if isinstance(part, str)))
    if not starts:
        return interpreter.end_of_text(main), {}

    def has_room(start: Start) -> bool:
        first = main.position if start.num_seen is None else start.num_seen
        return limits.has_room(first + len(start.prefix))

    kept = [start for start in starts if has_room(start)][: limits.max_blocks]
    is_counted = not expansion.known
    commands = interpreter.expand(
        [(start.topic, is_counted * len(start.prefix), start.after) for start in kept],
        is_cut=len(kept) < len(starts),
    )
    for child, start in zip(main.children, kept, strict=True):
        placer.start(child, start.num_seen)
    return commands, {child.id: start for child, start in zip(main.children, kept, strict=True)}
