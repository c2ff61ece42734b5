"""Requests that servers decode, by the calls of the local engine: submit, step, cancel.

The event loop has a thread of its own, so that requests go on while the caller does something
else, also where the caller has an event loop itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from pasta_lm.engines.request import Failed, Finished, Request, StreamEvent
from pasta_lm.engines.response import Response
from pasta_lm.errors import RemoteError

if TYPE_CHECKING:
    from pasta_lm.engines.servers.cluster import Cluster

Put = Callable[[StreamEvent], None]
Begun = Callable[[Response], None]
"""Called with each sample when it begins."""
Decode = Callable[["Cluster", Request, Put, Begun], Coroutine[Any, Any, None]]
"""Decodes all samples of a request and puts their events; raises if one cannot be finished."""


class RequestsInFlight:
    """Requests that are decoded while the ``with`` block lasts, or until ``close``."""

    def __init__(
        self, opened: Callable[[], AbstractAsyncContextManager[Cluster]], decode: Decode
    ) -> None:
        """Open the servers in a new event loop; a PastaError if they cannot be used."""
        self._opened, self._decode = opened, decode
        self._numbers = count()
        self._left: dict[int, int] = {}  # samples of each request that are not complete
        self._futures: dict[int, Future[None]] = {}
        self._events: SimpleQueue[tuple[int, StreamEvent | Failed]] = SimpleQueue()
        self._began: Future[asyncio.AbstractEventLoop] = Future()
        self._closing = asyncio.Event()
        self._thread = Thread(target=self._work, name="pasta-servers", daemon=True)
        self._thread.start()
        try:
            self._loop = self._began.result()
        except BaseException:
            self._thread.join()
            raise

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Abort all unfinished requests, and wait until they have ended."""
        self.close()

    def close(self) -> None:
        """Abort all unfinished requests, and wait until they have ended."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    # In the caller's thread

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished."""
        return bool(self._left)

    def submit(self, request: Request) -> int:
        """Begin a request and return its number."""
        number = next(self._numbers)
        self._left[number] = request.params.n
        work = self._carry_out(number, request)
        self._futures[number] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return number

    def cancel(self, number: int) -> None:
        """Cancel all completions of a request; unknown and finished ones are ignored."""
        if self._left.pop(number, None) is not None:
            self._futures.pop(number).cancel()

    def step(self, wait_s: float | None = None) -> list[tuple[int, StreamEvent | Failed]]:
        """Return the events since the last call; wait for one, at most ``wait_s`` if given."""
        events: list[tuple[int, StreamEvent | Failed]] = []
        with suppress(Empty):
            item = self._events.get(timeout=wait_s)
            while True:
                if item[0] in self._left:  # else it was cancelled, or has failed
                    events.append(item)
                    self._count(*item)
                item = self._events.get_nowait()
        return events

    def _count(self, number: int, event: StreamEvent | Failed) -> None:
        self._left[number] -= isinstance(event, Finished)
        if isinstance(event, Failed) or self._left[number] <= 0:
            del self._left[number], self._futures[number]

    # In the thread of the event loop

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as exc:
            if not self._began.done():
                self._began.set_exception(exc)
                return
            error = RemoteError(f"the connections to the servers failed: {exc!r}")
            for number in list(self._left):  # nothing waits in silence
                self._events.put((number, Failed(error)))

    async def _run(self) -> None:
        async with self._opened() as cluster:
            self._cluster = cluster
            before = asyncio.all_tasks()
            self._began.set_result(asyncio.get_running_loop())
            await self._closing.wait()
            tasks = asyncio.all_tasks() - before
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, number: int, request: Request) -> None:
        try:
            await self._decode(
                self._cluster,
                request,
                lambda event: self._events.put((number, event)),
                lambda response: None,
            )
        except Exception as exc:  # raised where the events are read
            self._events.put((number, Failed(exc)))
