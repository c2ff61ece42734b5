"""Events on their way to one client: a bounded queue, and the server-sent events from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from pasta_lm.engines.request import StreamEvent
from pasta_lm.serve.api_error import ApiError, unavailable
from pasta_lm.serve.settings import Queue

T = TypeVar("T")
Batch = list[StreamEvent]
"""The events of one request in one step."""
Item = Batch | ApiError | None
"""None: a request of the stream runs from now on."""
CLIENT_GONE = 499  # nobody reads this status; it is for the log

# SIGTERM must not cut running streams: the engine loop ends them at its own deadline.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


class ClientGoneError(Exception):
    """The client closed its connection."""


class ResponseStream:
    """The events of one HTTP request, a batch a step, for one reader."""

    def __init__(self, max_unread: int) -> None:
        self._max_unread = max_unread
        self._items: asyncio.Queue[Item] = asyncio.Queue()

    @property
    def num_unread(self) -> int:
        """Return the number of steps that wait for the reader."""
        return self._items.qsize()

    def put(self, item: Item) -> None:
        """Add a batch, or the error that ends the stream."""
        if self.num_unread > self._max_unread:
            self._items = asyncio.Queue()
            item = unavailable("the reader of this stream is too slow", "slow_reader")
        self._items.put_nowait(item)

    async def next(self) -> Batch:
        """Return the next batch; the first one is empty, and comes when a request runs.

        Raises:
            ApiError: a request was refused, took too long, or the engine failed.
        """
        item = await self._items.get()
        if isinstance(item, ApiError):
            raise item
        return item or []


async def until_gone(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Await a coroutine; cancel it if the client disconnects first.

    Raises:
        ClientGoneError: the client disconnected.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(EventSourceResponse):
    """Server-sent events with pings; drops slow readers, and always calls ``close``."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        queue: Queue,
        *,
        close: Callable[[], None],
        drop: Callable[[Scope], None],
    ) -> None:
        """Send encoded events.

        Args:
            events: One or several whole events at a time.
            queue: The time between pings, and the time for a reader to take what is sent.
            close: Called at the end, whatever it is.
            drop: Called if the reader was too slow; closes its connection.
        """
        super().__init__(
            events,
            ping=queue.ping_s,
            send_timeout=queue.send_s,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
        )
        self._close = close
        self._drop = drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        try:
            await super().__call__(scope, receive, send)
        except TimeoutError:
            self._drop(scope)
            await asyncio.sleep(0)  # the connection learns that it is closed
        except OSError:
            pass  # the connection broke
        finally:
            self._close()
