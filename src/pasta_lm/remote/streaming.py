"""Stream completions of token ids from a stock server; retries come before the first token only.

Importing this file needs the extra ``data``. A dialect says what is sent and how it is read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Any

import httpx2 as httpx

from pasta_lm.errors import EndpointError, RemoteError, RequestError
from pasta_lm.remote.dialects import CompletionRequest, Dialect, Piece, dialect_of, read_models
from pasta_lm.remote.pace import ADVICE, Fate, RetryPolicy, fate, retry_after

POLICY = RetryPolicy(max_requests=4, first_delay_s=0.25, max_retry_after_s=60.0)
_DATA, _DONE = "data:", "[DONE]"


class StockServer:
    """The address of a server, its load, and what it said about itself."""

    def __init__(
        self,
        url: str,
        *,
        dialect: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        policy: RetryPolicy = POLICY,
    ) -> None:
        """Keep the settings; nothing is sent.

        Args:
            url: The address without ``/v1``.
            dialect: A name in ``DIALECTS``; None: the server is asked of which kind it is.
            api_key: Sent as a bearer token.
            timeout_s: Seconds until the first token, and between two of them.
            policy: Number of requests and delays, until the first token.

        Raises:
            UsageError: there is no such dialect.
        """
        self.url = url
        self.num_responses = 0
        """Responses that it decodes now."""
        self.dialect = None if dialect is None else dialect_of(dialect)
        self.model: str | None = None
        self.policy = policy
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._timeout_s = timeout_s

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """Open a connection for the running event loop; ask the server for its model once.

        Raises:
            RemoteError: it cannot be reached, or its answer is unusable.
            EndpointError: it refuses every request, or does not say of which kind it is.
        """
        async with httpx.AsyncClient(
            headers=self._headers,
            timeout=httpx.Timeout(self._timeout_s, pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        ) as client:
            connection = Connection(self, client)
            if self.model is None:
                await connection.introduce()
            yield connection


class _TemporaryFailure(Exception):
    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Connection:
    """Requests to one server; belongs to one event loop."""

    def __init__(self, server: StockServer, client: httpx.AsyncClient) -> None:
        self.server = server
        self._client = client
        self._random = Random()

    async def introduce(self) -> None:
        """Ask which model the server has and, unless it is known, of which kind it is."""
        for num_sent in count(1):
            try:
                answer = await self._client.get(f"{self.server.url}/v1/models")
                _check(answer, self.server.url)
                data = answer.json()
                break
            except (httpx.HTTPError, ValueError, _TemporaryFailure) as exc:
                await self._wait(exc, num_sent)
        self.server.model, dialect = read_models(data)
        self.server.dialect = self.server.dialect or dialect
        if self.server.dialect is None:
            raise EndpointError(
                f"{self.server.url} does not say of which kind it is",
                hint="name its dialect: vllm, sglang or llama.cpp",
            )

    async def stream(self, request: CompletionRequest) -> AsyncIterator[Piece]:
        """Yield the pieces of a completion, the last one with a finish reason.

        429, 5xx, time-outs and broken connections are retried until the first piece came.

        Raises:
            RequestError: the server refuses this request; others may succeed.
            EndpointError: it refuses every request.
            RemoteError: no answer after all retries, or the stream broke.
        """
        for num_sent in count(1):
            has_begun = False
            try:
                async for piece in self._stream_once(request):
                    has_begun = has_begun or bool(piece.token_ids)
                    yield piece
                return
            except (httpx.HTTPError, httpx.StreamError, _TemporaryFailure) as exc:
                if has_begun:
                    raise RemoteError(f"{self.server.url} broke off: {_reason(exc)}") from exc
                await self._wait(exc, num_sent)

    async def _stream_once(self, request: CompletionRequest) -> AsyncIterator[Piece]:
        dialect, model = self.server.dialect, self.server.model
        assert dialect is not None
        assert model is not None
        num_received, url = 0, f"{self.server.url}{dialect.path}"
        async with self._client.stream("POST", url, json=dialect.body(model, request)) as answer:
            if answer.status_code != httpx.codes.OK:
                await answer.aread()
                _check(answer, self.server.url)
            async for line in answer.aiter_lines():
                if not line.startswith(_DATA) or (text := line[len(_DATA) :].strip()) == _DONE:
                    continue
                piece = _read(dialect, text, num_received, self.server.url)
                num_received += len(piece.token_ids)
                yield piece
                if piece.finish_reason is not None:
                    return
        raise _TemporaryFailure("the stream ended without a finish reason")

    async def _wait(self, error: Exception, num_sent: int) -> None:
        """Wait before the next attempt; raise a ``RemoteError`` if there is none left."""
        policy = self.server.policy
        asked_s = getattr(error, "retry_after_s", None) or 0.0
        if num_sent >= policy.max_requests or asked_s > policy.max_retry_after_s:
            times = f"{num_sent} request{'s' if num_sent > 1 else ''}"
            raise RemoteError(
                f"{self.server.url}: no answer after {times}, the last: {_reason(error)}"
            ) from error
        await asyncio.sleep(asked_s + policy.delay_s(num_sent, self._random))


def _read(dialect: Dialect, text: str, num_received: int, url: str) -> Piece:
    try:
        data: Any = json.loads(text)
        if isinstance(data, Mapping) and data.get("error"):
            raise _TemporaryFailure(f"it reports {str(data['error'])[:200]}")
        return dialect.piece(data, num_received)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise RemoteError(
            f"{url} sends what {dialect.name} does not: {text[:120]}",
            hint="is it another kind of server? Name its dialect",
        ) from exc


def _check(answer: httpx.Response, url: str) -> None:
    """Raise what a status means, unless it is a success."""
    outcome = fate(answer.status_code)
    if outcome is Fate.DONE:
        return
    reason = f"HTTP {answer.status_code}: {' '.join(answer.text.split())[:200]}"
    if outcome is Fate.STOP:
        raise EndpointError(f"{url} refuses: {reason}", hint=ADVICE[answer.status_code])
    if outcome is Fate.REFUSE:
        raise RequestError(f"{url} refuses the request: {reason}")
    headers = {name.lower(): value for name, value in answer.headers.items()}
    raise _TemporaryFailure(reason, retry_after(headers))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
