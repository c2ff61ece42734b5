"""Streams that go on for a while without a reader, so that a client can take them up again.

A resumable stream is kept, as far as its bound allows, while it is decoded; each reader follows
what is kept, from the event behind the last that it has.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import NamedTuple

from pasta_lm.serve.api_error import ApiError, bad_request, unavailable
from pasta_lm.serve.replies import DONE, sse
from pasta_lm.serve.settings import Queue

_EVENT = re.compile(r"(?:id: (\d+)\n)?.*?\n\n", re.DOTALL)
_EVENT_ID = re.compile(r"[0-9]{1,18}")
_MAX_TURNS = 20  # of the event loop, for readers to take what has come


class _Event(NamedTuple):
    number: int | None  # its id; pieces that describe no event of a thread have none
    text: str


class Recording:
    """The last events of one stream, and those who read it."""

    def __init__(
        self, texts: AsyncIterator[str], *, max_bytes: int, close: Callable[[], None]
    ) -> None:
        """Begin to follow a stream.

        Args:
            texts: Whole server-sent events.
            max_bytes: How much is kept; at least the last event always is.
            close: Called at the end, whatever it is.
        """
        self.num_readers = 0
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._close = close
        self._events: deque[_Event] = deque()
        self._num_dropped = self._last_number = self._num_idle = 0
        self._has_ended = False
        self._news = asyncio.Event()  # replaced whenever something comes
        self._task = asyncio.ensure_future(self._fill(texts))

    def cancel(self) -> None:
        """End the response; nobody reads it."""
        self._task.cancel()

    def place_after(self, last_id: str | None) -> int:
        """Return the place from which a reader goes on; None: from the first event.

        Raises:
            ApiError: 400, there was no such event; 410, it is no longer kept.
        """
        is_number = last_id is None or _EVENT_ID.fullmatch(last_id)
        number = int(last_id or 0) if is_number else -1
        if not 0 <= number <= self._last_number:
            message = f"Last-Event-ID must be a number from 0 to {self._last_number}"
            raise bad_request(message, "Last-Event-ID", "unknown_event")
        if number == 0 and self._num_dropped == 0:
            return 0
        for place, event in enumerate(self._events, start=self._num_dropped + 1):
            if event.number == number:
                return place
        raise ApiError(410, f"event {number} is no longer kept", code="event_expired")

    async def read(self, place: int) -> AsyncIterator[str]:
        """Yield the events from a place on, and those that come, to the end of the stream."""
        while place >= self._num_dropped:
            news, has_ended = self._news, self._has_ended
            texts = [event.text for event in islice(self._events, place - self._num_dropped, None)]
            place += len(texts)
            yield "".join(texts)
            if has_ended:
                return
            self._num_idle += 1
            try:
                await news.wait()
            finally:
                self._num_idle -= 1
        yield sse(unavailable("the reader of this stream is too slow", "slow_reader").body) + DONE

    async def _fill(self, texts: AsyncIterator[str]) -> None:
        try:
            async for text in texts:
                for found in _EVENT.finditer(text):
                    self._keep(_Event(int(found[1]) if found[1] else None, found[0]))
                self._tell()
                await self._let_read()
        finally:
            self._has_ended = True
            self._tell()
            self._close()

    async def _let_read(self) -> None:
        """Let the readers have their turn: a burst of steps must not push events past them."""
        for _ in range(_MAX_TURNS):
            await asyncio.sleep(0)
            if self._num_idle >= self.num_readers:
                return

    def _keep(self, event: _Event) -> None:
        self._events.append(event)
        self._last_number = event.number or self._last_number
        self._num_bytes += len(event.text)
        while self._num_bytes > self._max_bytes and len(self._events) > 1:
            self._num_bytes -= len(self._events.popleft().text)
            self._num_dropped += 1

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Recordings:
    """All resumable streams by the ids of their responses; each is forgotten without a reader."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._recordings: dict[str, Recording] = {}
        self._endings: dict[str, asyncio.TimerHandle] = {}

    def start(
        self, response_id: str, texts: AsyncIterator[str], close: Callable[[], None]
    ) -> AsyncIterator[str]:
        """Record a stream and return what its first reader reads; ``leave`` must follow."""
        made = Recording(texts, max_bytes=self._queue.resume_bytes, close=close)
        self._recordings[response_id] = made
        return self.enter(response_id, None)

    def enter(self, response_id: str, last_id: str | None) -> AsyncIterator[str]:
        """Return the events behind one that a reader has; ``leave`` must follow.

        Raises:
            ApiError: 404, there is no such stream; or the event is unknown or no longer kept.
        """
        recording = self._recordings.get(response_id)
        if recording is None:
            message = "no resumable stream has this id: it never had one, or it is forgotten"
            raise ApiError(404, message, code="unknown_response")
        texts = recording.read(recording.place_after(last_id))
        recording.num_readers += 1
        if response_id in self._endings:
            self._endings.pop(response_id).cancel()
        return texts

    def leave(self, response_id: str) -> None:
        """Say that a reader is gone; without another the stream ends after a while."""
        recording = self._recordings[response_id]
        recording.num_readers -= 1
        if recording.num_readers == 0:
            loop, delay = asyncio.get_running_loop(), self._queue.resume_s
            self._endings[response_id] = loop.call_later(delay, self._forget, response_id)

    def _forget(self, response_id: str) -> None:
        del self._endings[response_id]
        self._recordings.pop(response_id).cancel()
