"""How many requests are in flight at once: one more while all is well, half after a 429.

Additive increase, multiplicative decrease, as TCP has it. Requests that were sent before the last
cut do not cut again: a storm of refusals is one message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

FIRST_LIMIT = 4.0


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

    def grow(self) -> None:
        """Allow one more per round of answers: call it once for each good one."""
        self.limit = min(float(self._max), self.limit + 1 / self.limit)

    def shrink(self, era: int) -> None:
        """Halve the bound, unless it was halved since the refused request was sent."""
        if era == self._era:
            self._era += 1
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
