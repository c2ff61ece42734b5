"""How many requests are in flight at once: more while all is well, half after a 429.

As TCP has it: twice as many after each round of good answers until a first refusal, one more after
that. Where refusals begin is remembered, and after a cut the bound is soon close to it again.
Requests that were sent before a cut neither cut nor grow: a storm of refusals is one message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf

FIRST_LIMIT = 4.0
NEAR = 7 / 8
"""Of the bound at which a refusal came: so far it is known to be good."""


class Pace:
    """The bound on requests in flight; belongs to one event loop."""

    def __init__(
        self,
        max_in_flight: int = 64,
        first_limit: float = FIRST_LIMIT,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Begin small.

        Args:
            max_in_flight: The bound never grows beyond it.
            first_limit: The bound to begin with.
            sleep: What waits; tests give one that does not.
        """
        self.limit = min(float(max_in_flight), first_limit)
        self.num_in_flight = 0
        self._max = max_in_flight
        self._known_good = inf
        self._sleep = sleep
        self._era = 0
        self._pauses: set[object] = set()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[int]:
        """Wait for a place among those in flight; gives the era in which it was taken."""
        async with self._changed:
            await self._changed.wait_for(self._has_room)
            self.num_in_flight += 1
        try:
            yield self._era
        finally:
            self.num_in_flight -= 1
            async with self._changed:
                self._changed.notify(max(1, int(self.limit) - self.num_in_flight))

    def grow(self, era: int) -> None:
        """Allow more: call it once for each good answer.

        Args:
            era: In which it was asked for; one from before the last cut says nothing.
        """
        if era == self._era:
            quick = min(self.limit + 1, self._known_good)
            self.limit = min(float(self._max), max(quick, self.limit + 1 / self.limit))

    def shrink(self, era: int) -> None:
        """Halve the bound, unless it was halved since the refused request was sent."""
        if era == self._era:
            self._era += 1
            # Reached in large steps, the bound may be far above what the server takes.
            self._known_good = self.limit * (NEAR if self.limit >= self._known_good else 0.5)
            self.limit = max(1.0, self.limit / 2)

    async def pause(self, delay_s: float) -> None:
        """Let nobody begin for a while: the server named the time, and it holds for all."""
        mark = object()
        self._pauses.add(mark)
        try:
            await self._sleep(delay_s)
        finally:
            self._pauses.discard(mark)
            async with self._changed:
                self._changed.notify(max(1, int(self.limit) - self.num_in_flight))

    def _has_room(self) -> bool:
        return not self._pauses and self.num_in_flight < int(self.limit)
