"""The threads of a running response, and what an engine keeps beside them between two passes.

``Tokens`` is the interface to token ids. ``Expander`` extends a response whose request asks for it:
threads that begin when main has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from pasta_lm.engines.request import Expansion, Start
from pasta_lm.interpreter.commands import Command
from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.placement import Placer
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.language.lexer import Lexeme
from pasta_lm.models.text_stream import StopWatch


class Special(Enum):
    """A decoded outcome that has no token id."""

    END_OF_TEXT = "end of text"


END_OF_TEXT: Final = Special.END_OF_TEXT


class TokenText(Protocol):
    """The text of one thread's tokens, as they come in."""

    def feed(self, token_id: int) -> str:
        """Return the characters that this token completes."""

    def close(self) -> str:
        """Return the characters held back; a tag or the end of the thread follows."""


class Tokens(Protocol):
    """The token ids of an engine: those of a model's vocabulary, or numbered words."""

    def piece_id(self, piece: str) -> int:
        """Return the id of a tag piece."""

    def id_to_lexeme(self, token_id: int) -> Lexeme | None:
        """Return the lexeme of a tag piece, or None for an ordinary token."""

    def text_stream(self) -> TokenText:
        """Return a decoder for the tokens of one thread."""


@dataclass(slots=True, eq=False)
class LiveThread:
    """A thread and what the engine keeps beside it."""

    thread: Thread
    text: TokenText
    stops: StopWatch
    forced: Iterator[int] | None = None  # ids to decode instead of sampled ones
    next_token: int | None = None  # the decoded token that it feeds next
    prefix: Sequence[int] = ()
    """Tokens it feeds in front of ``next_token``, in the same pass, without having decoded them."""
    guesses: Sequence[int] = ()
    """Tokens it feeds behind ``next_token``, in the same pass: right if it then decodes them."""
    promised: Thread | None = None  # the thread that ``next_token`` forks
    joined: tuple[Thread, ...] | None = None  # the threads that ``next_token``, a sync, joins
    is_held: bool = False  # another thread of the response goes first; it stays out of the pass

    @property
    def feeds_next(self) -> bool:
        """Return whether it takes part in the coming pass."""
        return self.next_token is not None and self.thread.state is not ThreadState.WAITING

    @property
    def num_to_feed(self) -> int:
        """Return how many tokens it feeds in the coming pass."""
        return len(self.prefix) + 1 + len(self.guesses)

    @property
    def decodes(self) -> bool:
        """Return whether it decodes a token after the pass."""
        return self.thread.state is ThreadState.RUNNING


class Expander:
    """Starts the threads that write the answer when main has ended (Skeleton-of-Thought)."""

    def __init__(self, expansion: Expansion, interpreter: Interpreter, placer: Placer) -> None:
        self._expansion, self._interpreter, self._placer = expansion, interpreter, placer
        self.starts: dict[int, Start] = {}  # how each thread begins, by its id

    def is_too_long(self, thread: Thread) -> bool:
        """Return whether main has all the tokens that it may have before it ends."""
        return thread.is_main and thread.num_tokens >= self._expansion.max_main_tokens

    def expand(self, main: Thread) -> list[Command]:
        """End main; without a thread to start, the answer is main's after all."""
        text = "".join(part for part in main.content if isinstance(part, str))
        starts = self._expansion.starts(text)
        if not starts:
            return self._interpreter.end_of_text(main)
        kept = [start for start in starts if self._has_room(main, start)]
        kept = kept[: self._interpreter.limits.max_blocks]
        commands = self._interpreter.expand(
            [(start.topic, len(start.prefix)) for start in kept], is_cut=len(kept) < len(starts)
        )
        for child, start in zip(main.children, kept, strict=True):
            self._placer.start(child, start.num_seen)
            self.starts[child.id] = start
        return commands

    def _has_room(self, main: Thread, start: Start) -> bool:
        last = self._interpreter.limits.max_position
        first = main.position if start.num_seen is None else start.num_seen
        return last is None or first + len(start.prefix) < last - 1  # where threads must end
