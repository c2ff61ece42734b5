"""A thread in the local engine, and what stands beside it between two passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from pasta_lm.engines.stops import StopWatch
from pasta_lm.engines.text_stream import TextStream
from pasta_lm.interpreter.placement import Placed
from pasta_lm.interpreter.thread import Thread, ThreadState


class Special(Enum):
    """What is not a token id, but stands where one could."""

    END_OF_TEXT = "end of text"


END_OF_TEXT: Final = Special.END_OF_TEXT


@dataclass(slots=True, eq=False)
class Lane:
    """A thread and what the engine keeps beside it."""

    thread: Thread
    stream: TextStream
    stops: StopWatch
    forced: Iterator[int] | None = None
    """Ids to decode instead of sampled ones; then its end."""
    next_token: int | None = None
    """What it feeds next."""
    given: tuple[int, ...] = ()
    """What it feeds in the same pass in front of ``next_token``, without having decoded it."""
    guesses: tuple[int, ...] = ()
    """What it feeds in the same pass behind ``next_token``, should it decode just that."""
    guessed: list[Placed] = field(default_factory=list)
    """Where the guesses of the pass came to stand."""
    promised: Thread | None = None
    """The thread that ``next_token`` forks."""
    joined: tuple[Thread, ...] | None = None
    """The threads that ``next_token``, a sync, joins."""
    seen: set[int] = field(default_factory=set)
    """Ordinary ids that the thread sees; kept only where a repetition penalty counts them."""

    @property
    def feeds_next(self) -> bool:
        """Tell whether it takes part in the coming pass."""
        return self.next_token is not None and self.thread.state is not ThreadState.WAITING

    @property
    def num_to_feed(self) -> int:
        """Return how many tokens it feeds in the coming pass."""
        return len(self.given) + 1 + len(self.guesses)

    @property
    def decodes(self) -> bool:
        """Tell whether a token is wanted of it."""
        return self.thread.state is ThreadState.RUNNING
