"""A thread of a running response, and what an engine keeps beside it between two passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from pasta_lm.engines.text_stream import StopWatch
from pasta_lm.interpreter.thread import Thread, ThreadState
from pasta_lm.language.lexer import Lexeme


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
    seen: set[int] = field(default_factory=set)
    """Ordinary ids that it sees; kept only where a repetition penalty counts them."""

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
