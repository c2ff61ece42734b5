"""The events of one request, or of several, on their way to a reader: bounded, and never silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from pasta_lm.engines.request import Finished, Request, StreamEvent
from pasta_lm.serve.api_error import ApiError, unavailable
from pasta_lm.serve.settings import Queue

Batch = list[StreamEvent]  # the events of one request in one step
Item = Batch | ApiError | None  # None: it runs from now on
OWN_ERRORS = ("stall", "slow_reader")  # codes of errors that the engine does not know of


class ResponseStream:
    """The events of one request, a list a step; read by one reader in its event loop."""

    def __init__(self, request: Request, queue: Queue) -> None:
        self.request = request
        self.arrived_s = time.monotonic()
        self.started_s: float | None = None
        self.last_text_s: float | None = None
        self.number: int | None = None  # the engine's, while it runs there
        self.num_unfinished = request.params.n
        self.is_closed = False
        self.loop = asyncio.get_running_loop()
        self._queue = queue
        self._items: asyncio.Queue[Item] = asyncio.Queue()

    def put(self, item: Item) -> None:
        """Take an item; called in the event loop."""
        if self._items.qsize() > self._queue.unread_steps:
            self._items = asyncio.Queue()
            item = unavailable("the reader of this stream is too slow", "slow_reader")
        self._items.put_nowait(item)

    @property
    def num_unread(self) -> int:
        """Return how many steps wait for the reader."""
        return self._items.qsize()

    async def started(self) -> None:
        """Wait until the request runs.

        Raises:
            ApiError: it was refused, waited too long, or the engine failed.
        """
        # The engine ends the wait, unless it hangs in a step.
        item = await self._get(self._queue.wait_s + self._queue.stall_s)
        if isinstance(item, ApiError):
            raise item

    async def next(self) -> Batch:
        """Return the events of the next step that had some.

        Raises:
            ApiError: the response failed, or nothing happened for too long.
        """
        item = await self._get(self._queue.stall_s)
        if isinstance(item, ApiError):
            raise item
        return item or []

    async def _get(self, within_s: float) -> Item:
        try:
            # Not ``wait_for``: before Python 3.12 it can lose a cancellation.
            async with asyncio.timeout(within_s):
                return await self._items.get()
        except TimeoutError:
            message = f"the engine did nothing for {within_s:g} s"
            raise unavailable(message, "stall") from None


class JoinedStreams:
    """Reads the streams of several prompts as one; samples are numbered from prompt to prompt."""

    def __init__(self, streams: Sequence[ResponseStream]) -> None:
        # One step is held beyond what the streams keep, so that a slow reader slows these down.
        self._steps: asyncio.Queue[Batch | ApiError] = asyncio.Queue(maxsize=1)
        self._begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Future[None]] = []
        first_sample = 0
        for stream in streams:
            self._tasks.append(asyncio.ensure_future(self._read(stream, first_sample)))
            first_sample += stream.request.params.n

    async def started(self) -> None:
        """Wait until one of the requests runs.

        Raises:
            ApiError: one was refused before.
        """
        await self._begins

    async def next(self) -> Batch:
        """Return the events of one request in the next step that had some.

        Raises:
            ApiError: a response failed.
        """
        step = await self._steps.get()
        if isinstance(step, ApiError):
            raise step
        return step

    def close(self) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()

    async def _read(self, stream: ResponseStream, first_sample: int) -> None:
        num_left = stream.request.params.n
        try:
            await stream.started()
            if not self._begins.done():
                self._begins.set_result(None)
            while num_left:
                batch = await stream.next()
                num_left -= sum(isinstance(event, Finished) for event in batch)
                await self._steps.put(
                    [replace(event, sample=event.sample + first_sample) for event in batch]
                )
        except ApiError as error:
            if self._begins.done():
                await self._steps.put(error)
            else:
                self._begins.set_exception(error)
