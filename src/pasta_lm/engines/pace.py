"""Let the threads of a response run ahead of each other without changing what any of them writes.

Threads that decode guessed tokens, or that wait while another one decodes, are no longer fed in
step. Each has a *clock*: the pass that would have fed its last token if all had been fed in every
pass. Only the limit on all tokens depends on that order, so a thread runs ahead as far as that
limit is surely not reached there, and no farther; near the limit all go in step. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pasta_lm.interpreter.interpreter import Interpreter
from pasta_lm.interpreter.thread import Thread, ThreadState

TOKENS_OF_PROMISE = 3  # the shortest: opening, topic, closing


class Pace:
    """The clocks of a response's threads."""

    def __init__(self, interpreter: Interpreter, *, is_uncut: bool = False) -> None:
        self._interpreter = interpreter
        self._is_uncut = is_uncut
        self._clocks: dict[int, int] = {0: 0}

    @property
    def can_vary(self) -> bool:
        """Return whether threads may leave the common step: no other limit may depend on it."""
        limits = self._interpreter.limits
        is_bounded = limits.max_threads is not None and limits.max_threads <= limits.max_blocks
        return limits.max_depth <= 1 and not is_bounded

    def clock(self, thread: Thread) -> int:
        """Return the pass that feeds a thread's last token if all are fed in every pass."""
        if thread.id not in self._clocks:
            # A promise's end is fed, and <async> with it.
            assert thread.parent is not None
            self._clocks[thread.id] = self.clock(thread.parent)
        return self._clocks[thread.id]

    def fed(self, thread: Thread) -> None:
        """Note that a thread fed a token."""
        self._clocks[thread.id] = self.clock(thread) + 1

    def synced(self, thread: Thread, joined: Iterable[Thread]) -> None:
        """Note that a thread fed a sync, after all that it joins."""
        self._clocks[thread.id] = max([self.clock(thread) + 1, *map(self.clock, joined)])

    def room(self, thread: Thread, num_wanted: int = 0) -> int:
        """Return how many of some tokens beyond its next a thread may feed; -1: not even that."""
        if self._is_uncut:
            return num_wanted
        max_tokens = self._interpreter.limits.max_tokens
        first = self.clock(thread) + 1
        counts = range(num_wanted, -1, -1)
        return next((n for n in counts if self._bound(first + n) < max_tokens), -1)

    def going(self, threads: Sequence[Thread], width: int | None) -> list[Thread]:
        """Return which of the threads that decode go next: ``width`` at most; None: all.

        If the limit may be near, those go next that do if all go in step.
        """
        if any(self.room(thread) < 0 for thread in threads):
            first = min(map(self.clock, threads))
            return [thread for thread in threads if self.clock(thread) == first]
        # Main goes first, because it forks what can be decoded side by side; a thread begins
        # behind its promise's end. Then blocks in reading order.
        return sorted(threads, key=lambda thread: (not thread.is_main, thread.reading_key))[:width]

    def _bound(self, clock: int) -> int:
        bound = self._interpreter.num_tokens
        for thread in self._interpreter.threads:
            if thread.state is ThreadState.ENDED:
                continue
            left = max(0, clock - self.clock(thread))
            bound += left
            if thread.is_main:
                bound += self._of_promises(thread, left)
        return bound

    def _of_promises(self, main: Thread, left: int) -> int:
        limits, num_blocks = self._interpreter.limits, len(self._interpreter.threads) - 1
        first = 0 if main.in_topic else TOKENS_OF_PROMISE - 1
        sizes = range(left - first, 0, -TOKENS_OF_PROMISE)
        return sum(sizes[: max(0, limits.max_blocks - num_blocks)])
