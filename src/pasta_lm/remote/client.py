"""Ask a chat model behind HTTP: paced, with retries, and a clear end where none can help."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple, Self

from pasta_lm.errors import EndpointError, RemoteError, RequestError, UsageError
from pasta_lm.remote.chat import ChatReply, ChatRequest, read_reply
from pasta_lm.remote.pace import Pace
from pasta_lm.remote.retry import ADVICE, OUT_OF_CREDIT, Fate, RetryPolicy, fate, retry_after
from pasta_lm.remote.transport import Response, Transport, default_transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Which model, and where; the key itself is only in the environment."""

    base_url: str
    """Up to and with ``/v1``."""
    model: str
    api_key_env: str | None = None
    """Name of the environment variable with the key; None: the server asks for none."""
    timeout_s: float = 120.0
    """For one request, answer included."""

    def headers(self) -> dict[str, str]:
        """Return the headers of a request.

        Raises:
            UsageError: the variable that should hold the key is not set.
        """
        head = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.api_key_env is None:
            return head
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise UsageError(
                f"no key for {self.base_url}: {self.api_key_env} is not set",
                hint=f"export {self.api_key_env}=...",
            )
        return {**head, "Authorization": f"Bearer {key}"}


class ChatClient:
    """Asks one endpoint; many coroutines of one event loop may share it.

    >>> async def ask(question: str) -> str:
    ...     async with ChatClient(Endpoint(base_url="http://localhost:8000/v1", model="m")) as one:
    ...         reply = await one.complete(ChatRequest([{"role": "user", "content": question}]))
    ...     return reply.text
    """

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
        """Prepare to ask; nothing is sent yet.

        Raises:
            UsageError: the key is not in the environment.
        """
        self.endpoint = endpoint
        self.pace = pace or Pace()
        self.num_requests = 0
        """Sent so far, failed ones counted."""
        self._headers = endpoint.headers()
        self._policy = policy or RetryPolicy()
        self._transport = transport or default_transport()
        self._random = random or Random()
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close what is open."""
        await self._transport.close()

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Return the model's reply to one request.

        Waits for a place among those in flight, then sends; 408, 409, 429, 5xx, time-outs, broken
        connections and broken replies are tried again.

        Raises:
            EndpointError: the key, the model or the address is wrong: no request can succeed.
            RequestError: the server refuses this request; others may succeed.
            RemoteError: no answer after all tries.
        """
        reason = ""
        body = json.dumps(request.body(self.endpoint.model), ensure_ascii=False).encode()
        for num_sent in range(1, self._policy.max_requests + 1):
            async with self.pace.slot() as era:
                outcome = await self._send(body)
            if isinstance(outcome, ChatReply):
                self.pace.grow()
                return replace(outcome, num_requests=num_sent)
            if outcome.is_too_fast:
                self.pace.shrink(era)
            if num_sent < self._policy.max_requests:
                await self._wait(outcome, num_sent)
            reason = outcome.reason
        raise RemoteError(
            f"{self.endpoint.base_url}: no answer after {self._policy.max_requests} requests, "
            f"the last: {reason}"
        )

    async def _send(self, body: bytes) -> ChatReply | _Failure:
        """Send once; what may pass comes back as a failure, what may not is raised."""
        self.num_requests += 1
        url = f"{self.endpoint.base_url.rstrip('/')}/chat/completions"
        try:
            async with asyncio.timeout(self.endpoint.timeout_s):
                response = await self._transport.post(url, self._headers, body)
        except TimeoutError:
            return _Failure(f"nothing within {self.endpoint.timeout_s:g} s")
        except RemoteError as exc:
            return _Failure(exc.message)
        error = _error(response)
        outcome = fate(response.status, error.code)
        if outcome is Fate.DONE:
            try:
                return read_reply(response.body)
            except RemoteError as exc:
                return _Failure(exc.message)
        reason = f"HTTP {response.status}: {error.message}"
        if outcome is Fate.STOP:
            raise self._stop(response.status, error)
        if outcome is Fate.REFUSE:
            raise RequestError(f"{self.endpoint.base_url} refuses the request: {reason}")
        asked = retry_after(response.headers)
        return _Failure(reason, asked.delay_s if asked else None, outcome is Fate.SLOW_DOWN)

    async def _wait(self, failure: _Failure, num_failed: int) -> None:
        """Wait as the server asks, and a random time beyond."""
        asked_s = failure.retry_after_s
        if asked_s is not None:
            if asked_s > self._policy.max_retry_after_s:
                raise RemoteError(f"the server asks to wait {asked_s:.0f} s: {failure.reason}")
            await self.pace.pause(asked_s)
        await self._sleep(self._policy.delay_s(num_failed, self._random))

    def _stop(self, status: int, error: _Error) -> EndpointError:
        status_advised = 402 if error.code == OUT_OF_CREDIT else status
        return EndpointError(
            f"{self.endpoint.base_url} refuses model {self.endpoint.model!r}: "
            f"HTTP {status}: {error.message}",
            hint=ADVICE[status_advised],
        )


class _Failure(NamedTuple):
    """Why a request is to be sent again."""

    reason: str
    retry_after_s: float | None = None
    is_too_fast: bool = False


class _Error(NamedTuple):
    code: str
    message: str


def _error(response: Response) -> _Error:
    """Read the body of an error, as far as it is one."""
    try:
        data: Any = json.loads(response.body)
        found = data.get("error", data)
        message = found.get("message", "") if isinstance(found, dict) else str(found)
        code = found.get("code", "") if isinstance(found, dict) else ""
    except (ValueError, AttributeError):
        code, message = "", response.body[:120].decode(errors="replace")
    return _Error(str(code or ""), " ".join(str(message).split())[:200])
