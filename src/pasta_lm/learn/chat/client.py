"""Ask a chat model over HTTP: with a pace, retries, and a clear error where no retry can help."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass, replace
from importlib.util import find_spec
from random import Random
from typing import Any, NamedTuple, Protocol, Self

from pasta_lm.engines.servers.request_pace import (
    ADVICE,
    OUT_OF_CREDIT,
    Fate,
    Pace,
    RetryPolicy,
    fate,
    retry_after,
)
from pasta_lm.errors import EndpointError, MissingExtraError, RemoteError, RequestError, UsageError
from pasta_lm.learn.chat.chat import ChatReply, ChatRequest, Response, read_reply


class Transport(Protocol):
    """Carries one request to a model and the whole answer back; nothing is retried."""

    async def post(self, body: Mapping[str, Any]) -> Response:
        """Send a request; a ``RemoteError`` if there is no complete answer."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model and its server; the key itself is only in the environment."""

    base_url: str
    """Ends in ``/v1``; several servers of the model are separated by commas."""
    model: str
    api_key_env: str | None = None
    """Name of the environment variable with the key; None: the server needs none."""
    timeout_s: float = 120.0
    """For one request, answer included."""

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
                f"no key for {self.base_url}: {self.api_key_env} is not set",
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
        MissingExtraError: openai 3, which brings httpx2, is not installed.
        UsageError: the address is wrong or the key is missing.
    """
    if not (find_spec("openai") and find_spec("httpx2")):  # openai 2 has no httpx2
        raise MissingExtraError(f"asking {endpoint.base_url}", "data")
    from pasta_lm.learn.chat import spread, transport

    urls = endpoint.base_url.split(",")
    found = [transport.Transport(replace(endpoint, base_url=url)) for url in urls]
    return found[0] if len(found) == 1 else spread.SpreadTransport(found)


class ChatClient:
    """Asks one endpoint; shared by the coroutines of one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        pace: Pace | None = None,
        policy: RetryPolicy | None = None,
        transport: Transport | None = None,
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare to ask; raises the errors of ``connect``."""
        self.endpoint = endpoint
        self.pace = pace or Pace()
        self.num_requests = 0
        """Sent so far, with the failed ones."""
        self._policy = policy or RetryPolicy()
        self._transport = transport or connect(endpoint)
        self._random = random or Random()
        self._sleep = sleep
        self._sending: set[asyncio.Task[Any]] = set()
        self._is_draining = False
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
        reason = ""
        num_refused = 0
        body = request.body(self.endpoint.model)
        task = asyncio.current_task()
        assert task is not None
        for num_sent in range(1, self._policy.max_requests + 1):
            try:
                async with self.pace.slot() as era:
                    outcome = await self._send(body, task)
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
            reason = outcome.reason
        raise RemoteError(
            f"{self.endpoint.base_url}: no answer after {self._policy.max_requests} requests, "
            f"the last: {reason}"
        )

    async def _send(
        self, body: dict[str, Any], task: asyncio.Task[Any]
    ) -> ChatReply | _TemporaryFailure:
        if self._is_draining:
            raise asyncio.CancelledError
        self._sending.add(task)
        self.num_requests += 1
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            # Of the whole answer: HTTP clients bound the time between two pieces.
            async with asyncio.timeout(self.endpoint.timeout_s):
                response = await self._transport.post(body)
        except TimeoutError:
            return _TemporaryFailure(f"nothing within {self.endpoint.timeout_s:g} s")
        except RemoteError as exc:
            return _TemporaryFailure(exc.message)
        return self._read(response, clock() - began_s)

    def _read(self, response: Response, took_s: float) -> ChatReply | _TemporaryFailure:
        code, message = _read_error(response)
        outcome = fate(response.status, code)
        if outcome is Fate.DONE:
            try:
                reply = read_reply(response.body)
            except RemoteError as exc:
                return _TemporaryFailure(exc.message)
            self._answer_s += (took_s - self._answer_s) / 4
            return reply
        reason = f"HTTP {response.status}: {message}"
        if outcome is Fate.STOP:
            raise EndpointError(
                f"{self.endpoint.base_url} refuses model {self.endpoint.model!r}: {reason}",
                hint=ADVICE[402 if code == OUT_OF_CREDIT else response.status],
            )
        if outcome is Fate.REFUSE:
            raise RequestError(f"{self.endpoint.base_url} refuses the request: {reason}")
        delay_s = retry_after(response.headers)
        return _TemporaryFailure(reason, delay_s, outcome is Fate.SLOW_DOWN)

    async def _wait(self, failure: _TemporaryFailure, num_failed: int) -> None:
        """Wait as long as the server asks, then a random time.

        While other requests succeed, an error other than a 429 is likely to be an accident: delays
        then begin at the time of an answer and grow with the failures since the last good one.
        """
        if self._is_draining:
            raise asyncio.CancelledError
        asked_s = failure.retry_after_s
        if asked_s is not None:
            if asked_s > self._policy.max_retry_after_s:
                raise RemoteError(f"the server asks to wait {asked_s:.0f} s: {failure.reason}")
            await self.pace.pause(asked_s)
        first_delay_s = None
        if not failure.is_too_fast and self._num_failed_in_a_row < self._policy.max_requests:
            first_delay_s = self._answer_s
            num_failed = min(num_failed, self._num_failed_in_a_row)
        delay_s = self._policy.delay_s(num_failed, self._random, first_delay_s=first_delay_s)
        await self._sleep(delay_s)


class _TemporaryFailure(NamedTuple):
    reason: str
    retry_after_s: float | None = None
    is_too_fast: bool = False


def _read_error(response: Response) -> tuple[str, str]:
    """Return the code and the message in the body of an error, as far as it has them."""
    try:
        data: Any = json.loads(response.body)
        found = data.get("error", data)
        message = found.get("message", "") if isinstance(found, dict) else str(found)
        code = found.get("code", "") if isinstance(found, dict) else ""
    except (ValueError, AttributeError):
        code, message = "", response.body[:120].decode(errors="replace")
    return str(code or ""), " ".join(str(message).split())[:200]
