"""Ask one model many things at once, within a budget; each reply is kept before it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pasta_lm.errors import EndpointError, RemoteError, RequestError
from pasta_lm.remote.budget import Budget, most_tokens
from pasta_lm.remote.chat import ChatReply, ChatRequest
from pasta_lm.remote.client import ChatClient
from pasta_lm.remote.interrupts import interruptible

TAKEN_UP = 2
"""Requests for each that may be in flight: one that waits to be sent again blocks none."""
NUM_WORKERS = 128
"""Requests that are taken up at once, at most."""
ENOUGH_FAILURES = 5
"""So many in a row without an answer: the server is gone, or refuses everything."""
COST_LIMIT, INTERRUPT, ERROR = "cost limit", "interrupt", "error"

Keep = Callable[[str, ChatRequest, ChatReply], None]
"""Writes a reply down, and counts what it cost."""


class Failures:
    """What comes without an answer: a run stops where nothing else comes, and is resumed later."""

    def __init__(self, what: str) -> None:
        """Count nothing yet; ``what`` names those that fail, in the plural."""
        self._what = what
        self._num_in_a_row = self._num_answered = 0

    def answered(self) -> None:
        """Count an answer: the server is there."""
        self._num_in_a_row = 0
        self._num_answered += 1

    def failed(self, error: RemoteError | RequestError) -> None:
        """Count a failure.

        Raises:
            RemoteError: so many in a row that the server must be gone.
            EndpointError: it refuses everything.
        """
        self._num_in_a_row += 1
        if self._num_in_a_row < ENOUGH_FAILURES:
            return
        if isinstance(error, RemoteError):
            raise RemoteError(
                f"{error.message} ({self._num_in_a_row} {self._what} in a row)",
                hint="what was paid is kept: run the same command again when the server is back",
            ) from error
        if not self._num_answered:
            raise EndpointError(
                error.message,
                hint="no request succeeded: check the model and what it can take",
            ) from error


class Asking:
    """One run over some requests.

    Attributes:
        failures: By key, why a request has no reply.
        stopped_by: ``COST_LIMIT``, ``INTERRUPT`` or ``ERROR``; empty: everything was asked.
    """

    def __init__(self, requests: Mapping[str, ChatRequest], budget: Budget, keep: Keep) -> None:
        """Take the requests; nothing is sent yet."""
        self.failures: dict[str, str] = {}
        self.stopped_by = ""
        self._requests = iter(requests.items())
        self._num_workers = min(NUM_WORKERS, len(requests))
        self._budget, self._keep = budget, keep
        self._failures = Failures("requests")
        self._num_taken = 0
        self._given_back = asyncio.Condition()

    async def run(self, make: Callable[[], ChatClient]) -> None:
        """Ask; interrupted once, it awaits what was taken up.

        Raises:
            EndpointError: the key, the model or the address is wrong, or everything is refused.
            RemoteError: the server is gone.
            KeyboardInterrupt: it was interrupted twice.
        """
        async with make() as client:
            with interruptible(self._interrupt):
                workers = [
                    asyncio.create_task(self._work(client)) for _ in range(self._num_workers)
                ]
                try:
                    await asyncio.gather(*workers)
                finally:
                    for worker in workers:
                        worker.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)

    def _interrupt(self) -> None:
        self.stopped_by = INTERRUPT

    async def _work(self, client: ChatClient) -> None:
        while True:
            async with self._given_back:
                await self._given_back.wait_for(
                    lambda: self._num_taken < TAKEN_UP * int(client.pace.limit)
                )
                taken = next(self._requests, None)
                if taken is None or self.stopped_by:
                    return
                self._num_taken += 1
            try:
                await self._ask(client, *taken)
            except Exception:
                self.stopped_by = ERROR
                raise
            finally:
                async with self._given_back:
                    self._num_taken -= 1
                    self._given_back.notify_all()

    async def _ask(self, client: ChatClient, key: str, request: ChatRequest) -> None:
        most = most_tokens(request)
        if not await self._budget.reserve(most):
            self.stopped_by = self.stopped_by or COST_LIMIT
            return
        try:
            if not self.stopped_by:
                self._keep(key, request, await client.complete(request))
                self._failures.answered()
        except (RemoteError, RequestError) as exc:
            self.failures[key] = exc.message
            self._failures.failed(exc)
        finally:
            await self._budget.release(most)
