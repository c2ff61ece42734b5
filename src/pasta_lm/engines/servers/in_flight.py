"""Requests that servers decode, by the calls of the local engine: submit, step, cancel.

The event loop has a thread of its own, so that requests go on while the caller does something
else, also where the caller has an event loop itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Self, TypeVar

from pasta_lm.engines.request import Failed, Request, StreamEvent

if TYPE_CHECKING:
    from pasta_lm.engines.servers.completions import CompletionsEngine

T = TypeVar("T")


class RequestsInFlight:
    """Requests that are decoded while the ``with`` block lasts, or until ``close``."""

    def __init__(self, engine: CompletionsEngine) -> None:
        """Open the servers in a new event loop; a PastaError if they cannot be used."""
        self._engine = engine
        self._numbers = count()
        self._unfinished: dict[int, Future[None]] = {}
        self._events: SimpleQueue[tuple[int, StreamEvent | Failed | None]] = SimpleQueue()
        self._opened = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="pasta-servers", daemon=True)
        self._thread.start()
        try:
            opening = self._opened.enter_async_context(engine.opened())
            self._cluster = self._start(opening).result()
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
            self._start(self._end()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def has_work(self) -> bool:
        return bool(self._unfinished)

    def submit(self, request: Request) -> int:
        number = next(self._numbers)
        self._unfinished[number] = self._start(self._decode(number, request))
        return number

    def cancel(self, number: int) -> None:
        """Cancel all completions of a request; unknown and finished ones are ignored."""
        if task := self._unfinished.pop(number, None):
            task.cancel()

    def step(self) -> list[tuple[int, StreamEvent | Failed]]:
        """Wait for events or the end of a request, and return the events since the last call."""
        arrived = [self._events.get()]
        with suppress(Empty):
            while True:
                arrived.append(self._events.get_nowait())
        events = []
        for number, event in arrived:
            if event is None:
                self._unfinished.pop(number, None)
            elif number in self._unfinished:  # else it was cancelled
                events.append((number, event))
        return events

    def events(self) -> Iterator[tuple[int, StreamEvent | Failed]]:
        """Yield the events of all requests until none is unfinished."""
        while self.has_work:
            yield from self.step()

    def _start(self, work: Coroutine[object, object, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _decode(self, number: int, request: Request) -> None:
        put = partial(self._put, number)
        try:
            await self._engine.decode(self._cluster, request, put)
        except Exception as exc:  # raised where the events are read
            put(Failed(exc))
        put(None)

    def _put(self, number: int, event: StreamEvent | Failed | None) -> None:
        self._events.put((number, event))

    async def _end(self) -> None:
        own = {asyncio.current_task()}
        async with self._opened:  # requests end before their servers are left
            for task in (tasks := asyncio.all_tasks() - own):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        closing = asyncio.all_tasks() - own  # generators that were left
        await asyncio.gather(*closing, return_exceptions=True)
