"""Ask one model many requests at once; stop at errors and signals."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

from pasta_lm.errors import EndpointError, RemoteError, RequestError, first_error
from pasta_lm.journal import Row
from pasta_lm.learn.chat import client as chat

CHARACTERS_PER_TOKEN = 4
"""A cautious guess for English, where the model's tokenizer is not available."""
T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
MAX_FAILURES = 5  # After so many failures in a row the server is gone, or refuses everything.


class Spending:
    """The number and the tokens of the replies in rows of a journal, as their servers report them.

    A row has the body of its reply under ``reply``; rows without one do not count.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.num_replies, self.tokens = 0, chat.TokenCounts(0, 0)
        for row in rows:
            self.count(row)

    def count(self, row: Row) -> None:
        if "reply" in row:
            self.num_replies += 1
            tokens = chat.read_reply(row["reply"]).tokens
            self.tokens = chat.TokenCounts(*map(sum, zip(self.tokens, tokens, strict=True)))

    def __str__(self) -> str:
        return f"{self.tokens.prompt} tokens in, {self.tokens.completion} out"


class Estimate(NamedTuple):
    """Requests and tokens that a run will need, estimated from text lengths."""

    num_requests: int
    tokens: chat.TokenCounts

    def __str__(self) -> str:
        prompt, completion = map(_rounded, self.tokens)
        return f"{self.num_requests} requests, about {prompt} tokens in, {completion} out"


def estimate_tokens(messages: Sequence[chat.Message]) -> int:
    return sum(len(message["content"].encode()) for message in messages) // CHARACTERS_PER_TOKEN


def _rounded(number: int) -> str:
    return f"{number / 1e6:.2f} M" if number >= 100_000 else f"{number / 1e3:.1f} k"


class RequestPool:
    """Works on many jobs at once, ``what`` in messages; a job may need several requests."""

    def __init__(self, what: str, notice: Callable[[int], None] = lambda num_sending: None) -> None:
        self.is_interrupted = False  # a signal stopped the run before all jobs were done
        self._what, self._notice = what, notice
        self._client: chat.ChatClient
        self._tasks: list[asyncio.Task[None]] = []
        self._reading = asyncio.Lock()
        self._num_answered = self._num_failed_in_a_row = 0

    async def run(
        self, make_client: Callable[[], chat.ChatClient], jobs: Iterator[T],
        work: Callable[[T], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Work on all jobs; a first SIGINT or SIGTERM awaits the requests in flight."""
        try:
            async with (
                make_client() as self._client,
                _interruptible(self._interrupt),
                asyncio.TaskGroup() as group,
            ):
                count = self._client.endpoint.max_in_flight
                tasks = (self._work(jobs, work) for _ in range(count))
                self._tasks += map(group.create_task, tasks)
        except ExceptionGroup as errors:
            raise first_error(errors) from None

    async def ask(
        self, request: chat.ChatRequest
    ) -> chat.ChatReply | RemoteError | RequestError | None:
        """Send one request; return its reply, or an error; None after an interrupt.

        The error says that the server refuses this request, or gave no answer after all retries.
        """
        if self.is_interrupted:
            return None
        try:
            reply = await self._client.complete(request)
        except (RemoteError, RequestError) as exc:
            self._count_failure(exc)
            return exc
        self._num_failed_in_a_row = 0
        self._num_answered += 1
        return reply

    async def _work(self, jobs: Iterator[T], work: Callable[[T], Awaitable[None]]) -> None:
        while not self.is_interrupted:
            async with self._reading:
                job = await next_in_thread(jobs)
            if job is None:
                return
            await work(job)

    def _count_failure(self, error: RemoteError | RequestError) -> None:
        self._num_failed_in_a_row += 1
        if self._num_failed_in_a_row < MAX_FAILURES:
            return
        if isinstance(error, RemoteError):
            reason = f"{error.message} ({self._num_failed_in_a_row} {self._what} in a row)"
            hint = "paid replies are kept: run the same command again when the server is back"
            raise RemoteError(reason, hint=hint) from error
        if not self._num_answered:
            hint = "no request succeeded: check the model and what it can take"
            raise EndpointError(error.message, hint=hint) from error

    def _interrupt(self) -> None:
        self.is_interrupted = True
        self._client.drain()
        self._notice(len(self._client.sending))
        for task in self._tasks:
            if task not in self._client.sending:
                task.cancel()


@asynccontextmanager
async def _interruptible(stop: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``stop`` at a first signal; a second one raises ``KeyboardInterrupt`` at once.

    Does nothing outside the main thread, and where the system has no such signals.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    steps = iter((stop,))
    for number in SIGNALS:
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, lambda: next(steps, task.cancel)())
    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number in SIGNALS:
            with suppress(ValueError, RuntimeError, NotImplementedError):
                loop.remove_signal_handler(number)


async def next_in_thread(items: Iterator[T]) -> T | None:
    """Return the next item, or None after the last; the event loop goes on meanwhile.

    A source that hangs, such as a network, hangs in a daemon thread: the caller can be cancelled,
    and the process can end. One caller at a time; after a cancelled one there must be no other.
    """
    item: Future[T | None] = Future()

    def read() -> None:
        with suppress(InvalidStateError):  # the caller was cancelled
            try:
                item.set_result(next(items, None))
            except Exception as exc:
                item.set_exception(exc)

    threading.Thread(target=read, daemon=True).start()
    return await asyncio.wrap_future(item)
