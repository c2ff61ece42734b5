"""Ask one model many requests at once, within a budget; stop at errors, limits and signals."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import TypeVar

from pasta_lm.errors import EndpointError, RemoteError, RequestError, first_error
from pasta_lm.learn.chat.budget import Budget, TokenCounts
from pasta_lm.learn.chat.chat import ChatReply, ChatRequest
from pasta_lm.learn.chat.client import ChatClient

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
JOBS_PER_REQUEST = 2
"""Jobs at work for each request that may be in flight, because some wait for a retry."""
MAX_FAILURES = 5
"""After so many failures in a row the server is gone, or refuses everything."""
COST_LIMIT, INTERRUPT = "cost limit", "interrupt"


class RequestPool:
    """Works on many jobs at once; a job may need several requests.

    Attributes:
        stopped_by: ``COST_LIMIT`` or ``INTERRUPT``; empty if all jobs were done.
    """

    def __init__(
        self, budget: Budget, what: str, notice: Callable[[int], None] = lambda num_sending: None
    ) -> None:
        """Prepare a pool of jobs, which messages call ``what``.

        A request that does not fit the budget ends the run; ``notice`` is called at a first signal
        with the number of requests in flight.
        """
        self.stopped_by = ""
        self._budget = budget
        self._what = what
        self._notice = notice
        self._client: ChatClient
        self._tasks: list[asyncio.Task[None]] = []
        self._reading = asyncio.Lock()
        self._num_answered = self._num_failed_in_a_row = 0

    async def run(
        self,
        make_client: Callable[[], ChatClient],
        jobs: Iterator[T],
        work: Callable[[T], Awaitable[None]],
    ) -> None:
        """Work on all jobs; a first SIGINT or SIGTERM awaits the requests in flight.

        Raises:
            EndpointError: the key, the model or the address is wrong, or everything is refused.
            RemoteError: the server is gone.
            KeyboardInterrupt: a second signal.
        """
        async with make_client() as self._client:
            with _interruptible(self._interrupt):
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(JOBS_PER_REQUEST * self._client.pace.max_in_flight):
                            self._tasks.append(group.create_task(self._work(jobs, work)))
                except ExceptionGroup as errors:
                    raise first_error(errors) from None

    async def ask(
        self,
        request: ChatRequest,
        reserved: TokenCounts,
        keep: Callable[[ChatReply], None],
        fail: Callable[[RemoteError | RequestError], None],
    ) -> bool:
        """Send one request; return whether a reply was kept.

        Args:
            request: What to send.
            reserved: The most that it can take, for the budget.
            keep: Stores the reply and counts its cost.
            fail: Called if the server refuses this request, or gives no answer after all retries.
        """
        if not await self._budget.reserve(reserved):
            self.stopped_by = self.stopped_by or COST_LIMIT
            return False
        try:
            if self.stopped_by:
                return False
            keep(await self._client.complete(request))
        except (RemoteError, RequestError) as exc:
            fail(exc)
            self._count_failure(exc)
            return False
        finally:
            await self._budget.release(reserved)
        self._num_failed_in_a_row = 0
        self._num_answered += 1
        return True

    async def _work(self, jobs: Iterator[T], work: Callable[[T], Awaitable[None]]) -> None:
        while not self.stopped_by:
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
            raise RemoteError(
                f"{error.message} ({self._num_failed_in_a_row} {self._what} in a row)",
                hint="paid replies are kept: run the same command again when the server is back",
            ) from error
        if not self._num_answered:
            raise EndpointError(
                error.message,
                hint="no request succeeded: check the model and what it can take",
            ) from error

    def _interrupt(self) -> None:
        self.stopped_by = INTERRUPT
        self._client.drain()
        self._notice(len(self._client.sending))
        for task in self._tasks:
            if task not in self._client.sending:
                task.cancel()


@contextmanager
def _interruptible(stop: Callable[[], None]) -> Iterator[None]:
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
