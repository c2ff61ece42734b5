"""Sending to one client: pings, slow readers, and a client that goes away.

Whatever happens, ``close`` of the response is called, so that nothing is decoded for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pasta_lm.serve.settings import Queue

log = logging.getLogger(__name__)
T = TypeVar("T")
PING = b": ping\n\n"
CLIENT_GONE = 499  # nobody reads it; it is for the log


class ClientGone(Exception):
    """The client closed its connection."""


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what the work returns, unless the client goes away first.

    Raises:
        ClientGone: it did; the work was cancelled.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events, as they come."""

    media_type = "text/event-stream"

    def __init__(
        self,
        texts: AsyncIterator[str],
        queue: Queue,
        *,
        close: Callable[[], None],
        slow: Callable[[Scope], None],
    ) -> None:
        """Send these texts.

        Args:
            texts: Whole events; the stream ends when they do.
            queue: How often to ping, and how long to wait for a reader.
            close: Called at the end, whatever it is.
            slow: Called when the reader was too slow; it should cut the connection off.
        """
        no_cache = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(None, headers=no_cache)
        del self.headers["content-length"]
        self._texts = texts
        self._queue = queue
        self._close = close
        self._slow = slow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            await until_gone(receive, self._send_all(send))
        except TimeoutError:
            self._slow(scope)
            await asyncio.sleep(0)  # the connection learns that it is closed
        except (ClientGone, OSError):
            pass
        finally:
            self._close()

    async def _send_all(self, send: Send) -> None:
        async for body in self._bodies():
            message = {"type": "http.response.body", "body": body, "more_body": True}
            # Not ``wait_for``: before Python 3.12 it can lose a cancellation.
            async with asyncio.timeout(self._queue.send_s):
                await send(message)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _bodies(self) -> AsyncIterator[bytes]:
        """Yield the texts, and a ping whenever there was none for a while."""
        coming: asyncio.Future[str] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(self._texts))
                done, _ = await asyncio.wait({coming}, timeout=self._queue.ping_s)
                if not done:
                    yield PING
                    continue
                try:
                    text = coming.result()
                except StopAsyncIteration:
                    return
                coming = None
                if text:
                    yield text.encode()
        finally:
            if coming is not None:
                coming.cancel()
