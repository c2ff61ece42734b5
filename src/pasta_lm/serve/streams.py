"""The way of events to a client: jobs of the queue, their bounded stream, server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from pasta_lm.engines.request import Request, StreamEvent
from pasta_lm.serve.protocol import ApiError, unavailable
from pasta_lm.serve.settings import Queue

T = TypeVar("T")
Batch = list[StreamEvent]
"""The events of one request in one step."""
CLIENT_GONE = 499  # nobody reads this status; it is for the log

# SIGTERM must not cut running streams: the engine loop ends them at its own deadline.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


class ResponseStream:
    """The events of one HTTP request, a batch a step, for one reader."""

    def __init__(self, max_unread: int) -> None:
        self._max_unread = max_unread
        self._items: asyncio.Queue[Batch | ApiError] = asyncio.Queue()

    @property
    def num_unread(self) -> int:
        """Return the number of steps that wait for the reader."""
        return self._items.qsize()

    def put(self, item: Batch | ApiError) -> None:
        """Add a batch, or the error that ends the stream."""
        if self.num_unread > self._max_unread:
            self._items = asyncio.Queue()
            item = unavailable("the reader of this stream is too slow", "slow_reader")
        self._items.put_nowait(item)

    async def next(self) -> Batch:
        """Return the next batch, the first one empty when a request runs; raise an ``ApiError``."""
        item = await self._items.get()
        if isinstance(item, ApiError):
            raise item
        return item


@dataclass(slots=True, eq=False)
class Job:
    """One request of a stream, from the queue to its end."""

    request: Request
    stream: ResponseStream
    first_sample: int  # in its stream
    num_unfinished: int  # samples
    client: str = ""  # whose turn it is, an address
    num_passed: int = 0  # requests that began while it had no room
    arrived_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    last_text_s: float | None = None
    number: int | None = None  # the engine's, while it runs there
    deadline: asyncio.TimerHandle | None = None


async def until_gone(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Await a coroutine; cancel it and raise ``ClientDisconnect`` if the client disconnects."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
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
        """Send encoded events, whole ones at a time; ``drop`` closes a slow reader's connection."""
        super().__init__(
            events,
            ping=queue.ping_s,
            send_timeout=queue.send_s,
            ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
        )
        self._close, self._drop = close, drop

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
