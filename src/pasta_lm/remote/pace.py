"""The number of requests in flight: it grows with good answers and is halved after a 429.

As in TCP, it doubles with each round of good answers until a first refusal and grows by one a round
after that. The bound at which refusals begin is remembered, so that it is soon reached again.
Requests sent before a reduction change nothing: many refusals at once count as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf

FIRST_LIMIT = 4.0
SAFE_SHARE = 7 / 8
"""Share of the bound at which a refusal came that is assumed to be safe."""


class Pace:
    """The bound on requests in flight; belongs to one event loop."""

    def __init__(
        self,
        max_in_flight: int = 64,
        first_limit: float = FIRST_LIMIT,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Begin with a small bound.

        Args:
            max_in_flight: The bound never grows beyond it.
            first_limit: The first bound.
            sleep: Replaced by tests.
        """
        self.max_in_flight = max_in_flight
        self.limit = min(float(max_in_flight), first_limit)
        self.num_in_flight = 0
        self._known_good = inf
        self._sleep = sleep
        self._era = 0
        self._pauses: set[object] = set()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[int]:
        """Wait for a free slot; yields the era, which is the number of reductions so far."""
        async with self._changed:
            await self._changed.wait_for(self._has_room)
            self.num_in_flight += 1
        try:
            yield self._era
        finally:
            self.num_in_flight -= 1
            await self._notify()

    def grow(self, era: int) -> None:
        """Raise the bound after a good answer, unless its request is older than the last cut."""
        if era == self._era:
            quick = min(self.limit + 1, self._known_good)
            self.limit = min(float(self.max_in_flight), max(quick, self.limit + 1 / self.limit))

    def shrink(self, era: int) -> None:
        """Halve the bound, unless it was halved since the refused request was sent."""
        if era == self._era:
            self._era += 1
            # Reached in large steps, the bound may be far above what the server accepts.
            share = SAFE_SHARE if self.limit >= self._known_good else 0.5
            self._known_good = self.limit * share
            self.limit = max(1.0, self.limit / 2)

    async def pause(self, delay_s: float) -> None:
        """Let no request begin for a while: ``Retry-After`` holds for all requests."""
        mark = object()
        self._pauses.add(mark)
        try:
            await self._sleep(delay_s)
        finally:
            self._pauses.discard(mark)
            await self._notify()

    def _has_room(self) -> bool:
        return not self._pauses and self.num_in_flight < int(self.limit)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify(max(1, int(self.limit) - self.num_in_flight))
