"""Ask one model many requests at once, within a budget; stop at errors, limits and signals."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple, TypeVar

from pasta_lm.errors import (
    EndpointError,
    PastaError,
    RemoteError,
    RequestError,
    UsageError,
    first_error,
)
from pasta_lm.learn.chat.client import (
    ChatClient,
    ChatReply,
    ChatRequest,
    Message,
    Prices,
    TokenCounts,
)

CHARACTERS_PER_TOKEN = 4
"""A cautious guess for English, where the model's tokenizer is not available."""
MAX_TEMPLATE_TOKENS = 16  # Tokens that a chat template puts around one turn.
T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
MAX_FAILURES = 5  # After so many failures in a row the server is gone, or refuses everything.
COST_LIMIT, INTERRUPT = "cost limit", "interrupt"


class CostLimitError(PastaError):
    """Report that a further request could exceed the cost limit."""


class Spending:
    """The tokens of all stored replies and their cost."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.num_replies = 0
        self.tokens = TokenCounts(0, 0)

    @property
    def cost_usd(self) -> float:
        return self.prices.cost_usd(self.tokens)

    def count(self, tokens: TokenCounts) -> None:
        self.num_replies += 1
        self.tokens = TokenCounts(*map(sum, zip(self.tokens, tokens, strict=True)))

    def __str__(self) -> str:
        cost = f", {format_usd(self.cost_usd)}" if self.prices.are_known else ""
        return f"{self.tokens.prompt} tokens in, {self.tokens.completion} out{cost}"


class Budget:
    """Hard limit on total cost; requests that could exceed it are not sent."""

    def __init__(self, spending: Spending, limit_usd: float | None) -> None:
        require_prices(spending.prices, limit_usd)
        self._spending = spending
        self._limit_usd = limit_usd
        self._reserved: list[TokenCounts] = []
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def reserved(self, tokens: TokenCounts) -> AsyncIterator[bool]:
        """Wait until a request fits beside those in flight; gives False if it never will.

        At the end of the block the actual cost is counted in ``Spending``.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._fits(tokens) or not self._reserved)
            fits = self._fits(tokens)
            if fits:
                self._reserved.append(tokens)
        try:
            yield fits
        finally:
            async with self._changed:
                if fits:
                    self._reserved.remove(tokens)
                self._changed.notify_all()

    def _fits(self, tokens: TokenCounts) -> bool:
        reserved_usd = sum(map(self._spending.prices.cost_usd, [*self._reserved, tokens]))
        limit_usd = self._limit_usd
        return limit_usd is None or self._spending.cost_usd + reserved_usd <= limit_usd


def require_prices(prices: Prices, limit_usd: float | None) -> None:
    """Raise a UsageError if there is a cost limit and no prices."""
    if limit_usd is not None and not prices.are_known:
        hint = "give those of input and output, in US dollars for a million tokens"
        raise UsageError("a cost limit needs prices", hint=hint)


class Estimate(NamedTuple):
    """Requests and tokens that a run will need, estimated from text lengths."""

    num_requests: int
    tokens: TokenCounts
    prices: Prices

    def __str__(self) -> str:
        prompt, completion = map(_rounded, self.tokens)
        cost = f"about {format_usd(self.prices.cost_usd(self.tokens))}"
        return (
            f"{self.num_requests} requests, about {prompt} tokens in, {completion} out, "
            f"{cost if self.prices.are_known else 'no prices given'}"
        )


def format_usd(amount: float) -> str:
    """Return an amount in US dollars as text; small amounts with more digits."""
    return f"{amount:.2f} USD" if amount >= 1 else f"{amount:.4f} USD"


def estimate_tokens(messages: Sequence[Message]) -> int:
    return _num_bytes(messages) // CHARACTERS_PER_TOKEN


def max_tokens(request: ChatRequest) -> TokenCounts:
    """Return an upper bound of the tokens of a request: no token is shorter than one byte."""
    template = MAX_TEMPLATE_TOKENS * (len(request.messages) + 1)
    return TokenCounts(_num_bytes(request.messages) + template, request.max_tokens)


def _rounded(number: int) -> str:
    return f"{number / 1e6:.2f} M" if number >= 100_000 else f"{number / 1e3:.1f} k"


def _num_bytes(messages: Sequence[Message]) -> int:
    return sum(len(message["content"].encode()) for message in messages)


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
        """Work on all jobs; a first SIGINT or SIGTERM awaits the requests in flight."""
        async with make_client() as self._client:
            count = self._client.endpoint.max_in_flight
            try:
                with _interruptible(self._interrupt):
                    async with asyncio.TaskGroup() as group:
                        tasks = (self._work(jobs, work) for _ in range(count))
                        self._tasks += map(group.create_task, tasks)
            except ExceptionGroup as errors:
                raise first_error(errors) from None

    async def ask(
        self,
        request: ChatRequest,
        most: TokenCounts,
        keep: Callable[[ChatReply], None],
        fail: Callable[[RemoteError | RequestError], None],
    ) -> bool:
        """Send one request, which takes at most so many tokens; return whether a reply was kept.

        ``keep`` stores the reply and counts its cost; ``fail`` is called if the server refuses
        this request, or gives no answer after all retries.
        """
        async with self._budget.reserved(most) as fits:
            if not fits:
                self.stopped_by = self.stopped_by or COST_LIMIT
            if self.stopped_by:
                return False
            try:
                keep(await self._client.complete(request))
            except (RemoteError, RequestError) as exc:
                fail(exc)
                self._count_failure(exc)
                return False
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
            reason = f"{error.message} ({self._num_failed_in_a_row} {self._what} in a row)"
            hint = "paid replies are kept: run the same command again when the server is back"
            raise RemoteError(reason, hint=hint) from error
        if not self._num_answered:
            hint = "no request succeeded: check the model and what it can take"
            raise EndpointError(error.message, hint=hint) from error

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
