"""Requests that servers decode, by the calls of the local engine: submit, step, cancel.

The event loop has a thread of its own, so that requests go on while the caller does something
else, also where the caller has an event loop itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pasta_lm.engines.request import Failed, Finished, Request, StreamEvent

if TYPE_CHECKING:
    from pasta_lm.engines.servers.completions import CompletionsEngine

T = TypeVar("T")


class RequestsInFlight:
    """Requests that are decoded while the ``with`` block lasts, or until ``close``."""

    def __init__(self, engine: CompletionsEngine) -> None:
        """Open the servers in a new event loop; a PastaError if they cannot be used."""
        self._engine = engine
        self._numbers = count()
        self._left: dict[int, int] = {}  # samples of each request that are not complete
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()  # also cancelled ones
        self._events: SimpleQueue[tuple[int, StreamEvent | Failed]] = SimpleQueue()
        self._opened = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="pasta-servers", daemon=True)
        self._thread.start()
        try:
            self._cluster = self._run(self._opened.enter_async_context(engine.opened()))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort all unfinished requests, and wait until they have ended."""
        if not self._loop.is_closed():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def submit(self, request: Request) -> int:
        number = next(self._numbers)
        self._left[number] = request.params.n
        self._tasks[number] = self._run(self._begin(number, request))
        return number

    def cancel(self, number: int) -> None:
        """Cancel all completions of a request; unknown and finished ones are ignored."""
        if self._left.pop(number, None) is not None:
            self._loop.call_soon_threadsafe(self._tasks.pop(number).cancel)

    def step(self, wait_s: float | None = None) -> list[tuple[int, StreamEvent | Failed]]:
        """Return the events since the last call; wait for one, at most ``wait_s`` if set."""
        events: list[tuple[int, StreamEvent | Failed]] = []
        with suppress(Empty):
            events += self._noted(*self._events.get(timeout=wait_s))
            while True:
                events += self._noted(*self._events.get_nowait())
        return events

    def events(self) -> Iterator[tuple[int, StreamEvent | Failed]]:
        """Yield the events of all requests until none is unfinished."""
        while self.has_work:
            yield from self.step()

    def _noted(
        self, number: int, event: StreamEvent | Failed
    ) -> list[tuple[int, StreamEvent | Failed]]:
        if number not in self._left:  # it was cancelled, or has failed
            return []
        self._left[number] -= isinstance(event, Finished)
        if isinstance(event, Failed) or self._left[number] <= 0:
            del self._left[number], self._tasks[number]
        return [(number, event)]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _begin(self, number: int, request: Request) -> asyncio.Task[None]:
        task = asyncio.create_task(self._decode(number, request))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _decode(self, number: int, request: Request) -> None:
        def put(event: StreamEvent | Failed) -> None:
            self._events.put((number, event))

        try:
            await self._engine.decode(self._cluster, request, put)
        except Exception as exc:  # raised where the events are read
            put(Failed(exc))

    async def _end(self) -> None:
        async with self._opened:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        closing = asyncio.all_tasks() - {asyncio.current_task()}  # generators that were left
        await asyncio.gather(*closing, return_exceptions=True)
