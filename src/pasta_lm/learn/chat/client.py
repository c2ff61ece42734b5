"""Ask a chat model over HTTP: with a pace, retries, and an error where no retry can help."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from random import Random
from typing import Any, Protocol, Self

from pasta_lm.engines.servers.request_pace import (
    HttpReply,
    RequestPace,
    RetryPolicy,
    TemporaryFailure,
    raise_for_status,
    without_password,
)
from pasta_lm.errors import MissingExtraError, RemoteError, UsageError
from pasta_lm.learn.chat.budget import Prices
from pasta_lm.learn.chat.chat import (
    MAX_COMPLETION_TOKENS,
    MAX_TOKENS,
    ChatReply,
    ChatRequest,
    read_reply,
)
from pasta_lm.learn.chat.servers import ChatServers
from pasta_lm.recipe import check_positive


class Transport(Protocol):
    """Carries one request to a model and the whole reply back; nothing is retried."""

    async def post(self, body: Mapping[str, Any]) -> HttpReply:
        """Send a request; a ``TemporaryFailure`` if there is no complete reply."""

    async def close(self) -> None:
        """Close all connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A chat model, its servers and its prices: the keys of every such table of a recipe."""

    base_url: str
    """Ends in ``/v1``; several servers of the model are separated by commas."""
    model: str
    """As the servers name it."""
    api_key_env: str | None = None
    """Name of the environment variable with the key, which is in no file; None: no key."""
    timeout_s: float = 120.0
    """For one request, answer included."""
    max_in_flight: int = 32
    """Bound on concurrent requests; a run begins with few and halves their number on a 429."""
    input_price: float | None = None
    """US dollars per million tokens of prompts."""
    output_price: float | None = None
    """US dollars per million tokens of replies."""

    def __post_init__(self) -> None:
        """Validate combinations of keys."""
        table = self.table()
        check_positive(table, self, "timeout_s", "max_in_flight")
        if (self.input_price is None) != (self.output_price is None):
            raise UsageError(f"{table}.input_price and {table}.output_price go together")
        for key, price in (("input", self.input_price), ("output", self.output_price)):
            if price is not None and price < 0:
                raise UsageError(f"{table}.{key}_price is below 0")

    @staticmethod
    def table() -> str:
        """Return the name of the table in a recipe, for messages."""
        return "endpoint"

    @property
    def prices(self) -> Prices:
        """Return the prices of the model."""
        return Prices(self.input_price, self.output_price)

    @property
    def address(self) -> str:
        """Return the URLs without passwords, for files and messages."""
        return ",".join(map(without_password, self.base_url.split(",")))

    def api_key(self) -> str | None:
        """Return the key; None if the server needs none.

        Raises:
            UsageError: the variable is not set, or contains characters that no key has.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise UsageError(
                f"no key for {self.address}: {self.api_key_env} is not set",
                hint=f"export {self.api_key_env}=...",
            )
        if not (key.isascii() and key.isprintable()):
            raise UsageError(
                f"{self.api_key_env} contains characters that no key has", hint="copy it again"
            )
        return key


def connect(endpoint: Endpoint) -> Transport:
    """Return the transport of an endpoint.

    Raises:
        MissingExtraError: httpx2 is not installed.
        UsageError: the address is wrong or the key is missing.
    """
    if not find_spec("httpx2"):
        raise MissingExtraError(f"asking {endpoint.address}", "data")
    from pasta_lm.engines.servers.client import HttpClient

    key = endpoint.api_key()
    return ChatServers([HttpClient(url, key) for url in endpoint.base_url.split(",")])


class ChatClient:
    """Asks one endpoint; shared by the coroutines of one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        pace: RequestPace | None = None,
        policy: RetryPolicy | None = None,
        transport: Transport | None = None,
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare to ask; raises the errors of ``connect``."""
        self.endpoint = endpoint
        self.pace = pace or RequestPace(endpoint.max_in_flight)
        self.num_requests = 0
        """Sent so far, with the failed ones."""
        self._policy = policy or RetryPolicy()
        self._transport = transport or connect(endpoint)
        self._random = random or Random()
        self._sleep = sleep
        self._sending: set[asyncio.Task[Any]] = set()
        self._is_draining = False
        self._limit_key = MAX_TOKENS
        self._num_failed_in_a_row = 0
        """Of all requests, since the last good answer."""
        self._answer_s = self._policy.first_delay_s
        """Running mean of the time that good answers take."""

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._transport.close()

    @property
    def sending(self) -> Set[asyncio.Task[Any]]:
        """Return the tasks that have a request in flight, which may be paid."""
        return self._sending

    def drain(self) -> None:
        """Cancel every task that would send or retry; requests in flight are awaited."""
        self._is_draining = True

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Return the model's reply to one request.

        408, 409, 429, 5xx, time-outs, broken connections and broken replies are retried.

        Raises:
            EndpointError: the key, the model or the address is wrong: no request can succeed.
            RequestError: the server refuses this request; others may succeed.
            RemoteError: no answer after all retries.
        """
        num_refused = 0
        task = asyncio.current_task()
        assert task is not None
        for num_sent in range(1, self._policy.max_requests + 1):
            try:
                async with self.pace.slot() as era:
                    outcome = await self._attempt(request, task)
            finally:  # not earlier: leaving the slot may wait, with a paid reply in hand
                self._sending.discard(task)
            if isinstance(outcome, ChatReply):
                self._num_failed_in_a_row = 0
                self.pace.grow(era)
                return replace(outcome, num_requests=num_sent)
            self._num_failed_in_a_row += 1
            if outcome.is_too_fast:
                num_refused += 1
                self.pace.shrink(era)
            if num_sent < self._policy.max_requests:
                await self._wait(outcome, num_refused if outcome.is_too_fast else num_sent)
        raise RemoteError(
            f"{self.endpoint.address}: no answer after {num_sent} requests, the last: {outcome}"
        )

    async def _attempt(
        self, request: ChatRequest, task: asyncio.Task[Any]
    ) -> ChatReply | TemporaryFailure:
        try:
            return await self._send(request, task)
        except TemporaryFailure as failure:
            return failure

    async def _send(self, request: ChatRequest, task: asyncio.Task[Any]) -> ChatReply:
        if self._is_draining:
            raise asyncio.CancelledError
        self._sending.add(task)
        self.num_requests += 1
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            # Of the whole answer: HTTP clients bound the time between two pieces.
            async with asyncio.timeout(self.endpoint.timeout_s):
                reply = await self._post(request)
        except TimeoutError as exc:
            raise TemporaryFailure(f"nothing within {self.endpoint.timeout_s:g} s") from exc
        what = f"model {self.endpoint.model!r}"
        raise_for_status(reply, self.endpoint.address, what)
        try:
            chat = read_reply(reply.body)
        except RemoteError as exc:
            raise TemporaryFailure(exc.message) from exc
        self._answer_s += (clock() - began_s - self._answer_s) / 4
        return chat

    async def _post(self, request: ChatRequest) -> HttpReply:
        """Send a request, again under another key where the model wants its limit there."""
        model = self.endpoint.model
        reply = await self._transport.post(request.body(model, self._limit_key))
        wants_other_key = reply.status == 400 and MAX_COMPLETION_TOKENS.encode() in reply.body
        if wants_other_key and self._limit_key != MAX_COMPLETION_TOKENS:
            self._limit_key = MAX_COMPLETION_TOKENS
            reply = await self._transport.post(request.body(model, self._limit_key))
        return reply

    async def _wait(self, failure: TemporaryFailure, num_failed: int) -> None:
        """Wait as long as the server asks, then a random time.

        While other requests succeed, an error other than a 429 is likely to be an accident: delays
        then begin at the time of an answer and grow with the failures since the last good one.
        """
        if self._is_draining:
            raise asyncio.CancelledError
        wanted_s = failure.retry_after_s
        if wanted_s is not None:
            if wanted_s > self._policy.max_retry_after_s:
                raise RemoteError(f"the server asks to wait {wanted_s:.0f} s: {failure}")
            await self.pace.pause(wanted_s)
        first_delay_s = None
        if not failure.is_too_fast and self._num_failed_in_a_row < self._policy.max_requests:
            first_delay_s = self._answer_s
            num_failed = min(num_failed, self._num_failed_in_a_row)
        delay_s = self._policy.delay_s(num_failed, self._random, first_delay_s=first_delay_s)
        await self._sleep(delay_s)
