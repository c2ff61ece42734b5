"""Requests that servers decode, by the calls of the local engine: submit, step, cancel.

The event loop has a thread of its own, so that requests go on while the caller does something
else, also where the caller has an event loop itself. Knows nothing of servers and of threads that
decode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
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
"""Is told each sample when it begins."""
Decode = Callable[["Cluster", Request, Put, Begun], Coroutine[Any, Any, None]]
"""Decodes all samples of a request and puts their events; raises if one cannot be finished."""


class RequestsInFlight:
    """Requests that are decoded while the ``with`` block lasts, or until ``close``."""

    def __init__(
        self, opened: Callable[[], AbstractAsyncContextManager[Cluster]], decode: Decode
    ) -> None:
        """Open the servers.

        Args:
            opened: Returns the servers, to be entered in the event loop.
            decode: Decodes a request there.

        Raises:
            PastaError: the servers cannot be used.
        """
        self._opened, self._decode = opened, decode
        self._numbers = count()
        self._left: dict[int, int] = {}  # samples of each request that are not complete
        self._responses: dict[int, dict[int, Response]] = {}  # of requests, by sample
        self._items: SimpleQueue[tuple[int, StreamEvent | Failed]] = SimpleQueue()
        self._tasks: dict[int, asyncio.Task[None]] = {}
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
        """Abort what is unfinished, and wait until it has ended."""
        self.close()

    def close(self) -> None:
        """Abort what is unfinished, and wait until it has ended."""
        self._call(self._closing.set)
        self._thread.join()

    # In the caller's thread

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished."""
        return bool(self._left)

    @property
    def responses(self) -> Mapping[int, list[Response]]:
        """Return the samples of each unfinished request that have begun, for reading."""
        return {number: list(self._responses.get(number, {}).values()) for number in self._left}

    def submit(self, request: Request) -> int:
        """Begin a request and return its number."""
        number = next(self._numbers)
        self._left[number] = request.params.n
        self._call(self._begin, number, request)
        return number

    def cancel(self, number: int) -> None:
        """Cancel all completions of a request; unknown and finished ones are ignored."""
        if self._left.pop(number, None) is not None:
            self._call(self._cancel, number)

    def step(self, wait_s: float | None = None) -> list[tuple[int, StreamEvent | Failed]]:
        """Return what happened since the last call, each event with the number of its request.

        Args:
            wait_s: How long to wait if nothing has; None: until something does.
        """
        found: list[tuple[int, StreamEvent | Failed]] = []
        with suppress(Empty):
            item = self._items.get(timeout=wait_s)
            while True:
                if item[0] in self._left:  # else it was aborted, or has failed
                    found.append(item)
                    self._count(*item)
                item = self._items.get_nowait()
        return found

    def _count(self, number: int, event: StreamEvent | Failed) -> None:
        self._left[number] -= isinstance(event, Finished)
        if isinstance(event, Failed) or self._left[number] <= 0:
            del self._left[number]

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)

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
                self._items.put((number, Failed(error)))

    async def _run(self) -> None:
        async with self._opened() as cluster:
            self._cluster = cluster
            self._began.set_result(asyncio.get_running_loop())
            await self._closing.wait()
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, number: int, request: Request) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(number, request))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._forget(number))

    def _forget(self, number: int) -> None:
        self._tasks.pop(number, None)
        self._responses.pop(number, None)

    def _cancel(self, number: int) -> None:
        if number in self._tasks:
            self._tasks[number].cancel()

    async def _carry_out(self, number: int, request: Request) -> None:
        begun = self._responses.setdefault(number, {})

        def put(event: StreamEvent) -> None:
            self._items.put((number, event))

        def begin(response: Response) -> None:
            begun[response.sample] = response

        try:
            await self._decode(self._cluster, request, put, begin)
        except Exception as exc:  # raised, or told, where the events are read
            self._items.put((number, Failed(exc)))
