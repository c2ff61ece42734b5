"""Requests that servers decode, by the calls of the local engine: submit, step, cancel.

The event loop has a thread of its own, so that requests go on while the caller does something
else, also where the caller has an event loop itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Self, TypeVar

from pasta_lm.engines.request import Failed, Request, StreamEvent
from pasta_lm.engines.response import Response

if TYPE_CHECKING:
    from pasta_lm.engines.servers.completions import CompletionsEngine

T = TypeVar("T")
NO_REQUEST = -1


@dataclass(slots=True, eq=False)
class ServedRequest:
    """An unfinished request, and those of its samples that have begun."""

    request: Request
    samples: dict[int, Response] = field(default_factory=dict)
    task: Future[None] | None = None

    @property
    def responses(self) -> list[Response]:
        """Return the samples, also while others begin."""
        return list(self.samples.values())


class RequestsInFlight:
    """Requests that are decoded while the ``with`` block lasts, or until ``close``."""

    def __init__(self, engine: CompletionsEngine) -> None:
        """Open the servers in a new event loop; errors as those of ``Cluster.open``."""
        self.active: dict[int, ServedRequest] = {}  # the unfinished requests by their numbers
        self._engine, self._cluster = engine, engine.cluster()
        self._numbers = count()
        self._events: SimpleQueue[tuple[int, StreamEvent | Failed | None]] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="pasta-servers", daemon=True)
        self._thread.start()
        try:
            self._start(self._cluster.open()).result()
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
            self.active.clear()
            self.wake()

    def submit(self, request: Request) -> int:
        number, active = next(self._numbers), ServedRequest(request)
        self.active[number] = active
        active.task = self._start(self._decode(number, active))
        return number

    def cancel(self, number: int) -> None:
        """Cancel all completions of a request; unknown and finished ones are ignored."""
        active = self.active.pop(number, None)
        if active is not None and active.task is not None:
            active.task.cancel()

    def step(self) -> list[tuple[int, StreamEvent | Failed]]:
        """Wait for events or the end of a request, and return the events since the last call."""
        arrived = [self._events.get()]
        with suppress(Empty):
            while True:
                arrived.append(self._events.get_nowait())
        events = []
        for number, event in arrived:
            if event is None:
                self.active.pop(number, None)
            elif number in self.active:  # else it was cancelled
                events.append((number, event))
        return events

    def wake(self) -> None:
        """End a step that waits."""
        self._events.put((NO_REQUEST, None))

    def events(self) -> Iterator[tuple[int, StreamEvent | Failed]]:
        """Yield the events of all requests until none is unfinished."""
        while self.active:
            yield from self.step()

    def _start(self, work: Coroutine[object, object, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _decode(self, number: int, active: ServedRequest) -> None:
        def put(event: StreamEvent | Failed | None) -> None:
            self._events.put((number, event))

        try:
            await self._engine.decode(self._cluster, active.request, active.samples, put)
        except Exception as exc:  # raised where the events are read
            put(Failed(exc))
        put(None)

    async def _end(self) -> None:
        own = {asyncio.current_task()}
        for task in (tasks := asyncio.all_tasks() - own):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._cluster.close()
        await self._loop.shutdown_asyncgens()
        closing = asyncio.all_tasks() - own  # generators that were left
        await asyncio.gather(*closing, return_exceptions=True)
