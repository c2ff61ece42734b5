"""Stream completions of token ids from a stock server; retries come before the first token only.

Importing this file needs the extra ``data``. A dialect says what is sent and how it is read.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import httpx2 as httpx

from pasta_lm.engines.servers.dialects import (
    DIALECTS,
    KEY_ENV,
    CompletionRequest,
    Dialect,
    Piece,
    dialect_of,
    read_models,
)
from pasta_lm.engines.servers.request_pace import ADVICE, Fate, Pace, RetryPolicy, fate, retry_after
from pasta_lm.errors import EndpointError, RemoteError, RequestError

POLICY = RetryPolicy(max_requests=4, first_delay_s=0.25, max_retry_after_s=60.0)
CONNECT_S = 5.0
MAX_IN_FLIGHT = 1024
"""Completions of one server; it is lowered while the server answers 429."""
BUSY_S = 300.0
"""Longest time that a completion waits for a server that answers 429."""
_ADVICE = {
    **ADVICE,
    401: f"its key is missing or wrong: set the environment variable {KEY_ENV}",
    404: "it has no such page or model: check the address and the dialect",
}
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
        busy_s: float = BUSY_S,
    ) -> None:
        """Keep the settings; nothing is sent.

        Args:
            url: The address without ``/v1``.
            dialect: A name in ``DIALECTS``; None: the server is asked of which kind it is.
            api_key: Sent as a bearer token.
            timeout_s: Seconds until the first token, and between two of them.
            policy: Number of requests and delays, until the first token.
            busy_s: Seconds that a completion waits for a server that has too much to do.

        Raises:
            UsageError: there is no such dialect.
        """
        self.url = url
        self.num_responses = 0
        """Responses that it decodes now."""
        self.is_up = False
        """Whether it takes responses: it was asked who it is, and has not been lost since."""
        self.dialect = None if dialect is None else dialect_of(dialect)
        self.model: str | None = None
        self.names: tuple[str, ...] = ()
        """Of the model: how requests name it, and its folder or hub id if the server says so."""
        self.context: int | None = None
        """Tokens of prompt and answer that it takes, if it says so."""
        self.policy = policy
        self.busy_s = busy_s
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._timeout_s = timeout_s

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """Open a connection for the running event loop; nothing is sent."""
        async with httpx.AsyncClient(
            headers=self._headers,
            timeout=httpx.Timeout(self._timeout_s, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
            verify=self.url.startswith("https"),  # reading certificates takes a while
        ) as client:
            yield Connection(self, client)


class _TemporaryFailure(Exception):
    def __init__(
        self, reason: str, retry_after_s: float | None = None, *, is_too_fast: bool = False
    ) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.is_too_fast = is_too_fast


class Connection:
    """Requests to one server; belongs to one event loop."""

    def __init__(self, server: StockServer, client: httpx.AsyncClient) -> None:
        self.server = server
        self._client = client
        self._random = Random()
        self._pace = Pace(MAX_IN_FLIGHT, MAX_IN_FLIGHT)

    async def introduce(self, *, max_requests: int | None = None) -> None:
        """Ask which model the server has and, unless it is known, of which kind it is.

        Raises:
            RemoteError: it cannot be reached, or its answer is unusable.
            EndpointError: it refuses every request, or does not say of which kind it is.
        """
        server = self.server
        found = read_models(await self.ask("/v1/models", max_requests=max_requests))
        server.model, server.context = found.model, found.context
        server.names = tuple(one for one in (found.model, found.root) if one)
        server.dialect = server.dialect or found.dialect or await self._asked_dialect()
        if server.dialect is None:
            raise EndpointError(
                f"{server.url} does not say of which kind it is, but {found.owner or 'nothing'!r}",
                hint="name its dialect: --dialect vllm, sglang or llama.cpp",
            )

    async def _asked_dialect(self) -> Dialect | None:
        """Return the first dialect whose own page the server has."""
        for dialect in DIALECTS.values():
            path, key = dialect.known_by
            try:
                if key in await self.ask(path, max_requests=1):
                    return dialect
            except (RemoteError, RequestError, EndpointError):
                continue
        return None

    async def ask(
        self, path: str, body: Mapping[str, Any] | None = None, *, max_requests: int | None = None
    ) -> Any:
        """Return the JSON of a reply that is not streamed; errors as those of ``stream``.

        Args:
            path: Behind the server's address.
            body: It is posted; None: the path is read.
            max_requests: Replaces the policy's number.
        """
        method, url = "GET" if body is None else "POST", f"{self.server.url}{path}"
        for num_sent in count(1):
            try:
                answer = await self._client.request(method, url, json=body)
                _check(answer, self.server.url)
                return answer.json()
            except (httpx.HTTPError, ValueError, _TemporaryFailure) as exc:
                await self._wait(exc, num_sent, max_requests)
        raise AssertionError("the last attempt raises")

    async def stream(self, request: CompletionRequest) -> AsyncIterator[Piece]:
        """Yield the pieces of a completion, the last one with a finish reason.

        5xx, time-outs and broken connections are retried until the first piece came. A 429 counts
        as no failure: the completions of this server wait, fewer are sent at once, and it is
        given up after ``busy_s``.

        Raises:
            RequestError: the server refuses this request; others may succeed.
            EndpointError: it refuses every request.
            RemoteError: no answer after all retries, or the stream broke.
        """
        num_failed = num_refused = 0
        give_up_s = time.monotonic() + self.server.busy_s
        while True:
            has_begun = False
            try:
                async with self._pace.slot() as era:
                    async for piece in self._stream_once(request):
                        has_begun = has_begun or bool(piece.token_ids)
                        yield piece
                self._pace.grow(era)
                return
            except (httpx.HTTPError, httpx.StreamError, _TemporaryFailure) as exc:
                if has_begun:
                    raise RemoteError(f"{self.server.url} broke off: {_reason(exc)}") from exc
                if isinstance(exc, _TemporaryFailure) and exc.is_too_fast:
                    num_refused += 1
                    delay_s = self._delay_s(exc, num_refused)
                    if time.monotonic() + delay_s < give_up_s:
                        self._pace.shrink(era)
                        await self._pace.pause(delay_s)
                        continue
                    num_failed = self.server.policy.max_requests
                num_failed += 1
                await self._wait(exc, num_failed)

    async def _stream_once(self, request: CompletionRequest) -> AsyncIterator[Piece]:
        dialect, model = self.server.dialect, self.server.model
        assert dialect is not None
        assert model is not None
        received: list[int] = []
        url = f"{self.server.url}{dialect.path}"
        async with self._client.stream("POST", url, json=dialect.body(model, request)) as answer:
            if answer.status_code != httpx.codes.OK:
                await answer.aread()
                _check(answer, self.server.url)
            async for line in answer.aiter_lines():
                if not line.startswith(_DATA) or (text := line[len(_DATA) :].strip()) == _DONE:
                    continue
                piece = _read(dialect, text, len(received), self.server.url)
                if piece.num_unsent:
                    piece = await self._with_unsent(request, received, piece)
                received += piece.token_ids
                yield piece
                if piece.finish_reason is not None:
                    return
        raise _TemporaryFailure("the stream ended without a finish reason")

    async def _with_unsent(
        self, request: CompletionRequest, received: list[int], piece: Piece
    ) -> Piece:
        """Return a piece with the tokens that the server left out of the stream before it.

        The same completion is asked for again, not streamed. If it then goes another way, which a
        near-tie can cause, the completion ends here and the next one goes on behind it.
        """
        num_due = piece.num_unsent + len(piece.token_ids)
        found: list[int] | None = None
        if request.temperature > 0:  # the seed draws the same only from the beginning
            again = replace(request, max_tokens=len(received) + num_due)
            whole = await self._whole(again)
            found = whole[len(received) :] if whole[: len(received)] == received else None
        if found is None:
            behind = [*request.prompt, *received]
            found = await self._whole(replace(request, prompt=behind, max_tokens=num_due))
        tail = [*piece.token_ids]
        if tail and len(found) == num_due and found[-len(tail) :] == tail:
            return replace(piece, token_ids=found, num_unsent=0)
        return Piece(found, "length")

    async def _whole(self, request: CompletionRequest) -> list[int]:
        """Return the ids of a completion that is not streamed."""
        dialect, model, url = self.server.dialect, self.server.model, self.server.url
        assert dialect is not None
        assert dialect.whole is not None
        assert model is not None
        body = dialect.body(model, request) | {"stream": False}
        answer = await self._client.post(f"{url}{dialect.path}", json=body)
        _check(answer, url)
        with _understood(dialect, answer.text, url):
            return [*dialect.whole(json.loads(answer.text))]

    async def _wait(self, error: Exception, num_sent: int, most: int | None = None) -> None:
        """Wait before the next attempt; raise a ``RemoteError`` if there is none left."""
        policy = self.server.policy
        delay_s = self._delay_s(error, num_sent)
        if num_sent >= (most or policy.max_requests) or delay_s > policy.max_retry_after_s:
            times = f"{num_sent} request{'s' if num_sent > 1 else ''}"
            raise RemoteError(
                f"{self.server.url}: no answer after {times}, the last: {_reason(error)}"
            ) from error
        await asyncio.sleep(delay_s)

    def _delay_s(self, error: Exception, num_failed: int) -> float:
        asked_s = getattr(error, "retry_after_s", None) or 0.0
        return float(asked_s) + self.server.policy.delay_s(num_failed, self._random)


def _read(dialect: Dialect, text: str, num_received: int, url: str) -> Piece:
    with _understood(dialect, text, url):
        data: Any = json.loads(text)
        if isinstance(data, Mapping) and data.get("error"):
            raise _TemporaryFailure(f"it reports {str(data['error'])[:200]}")
        return dialect.piece(data, num_received)


@contextmanager
def _understood(dialect: Dialect, text: str, url: str) -> Iterator[None]:
    """Raise a ``RemoteError`` where a reply is not what the dialect has."""
    try:
        yield
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
        raise EndpointError(f"{url} refuses: {reason}", hint=_ADVICE[answer.status_code])
    if outcome is Fate.REFUSE:
        raise RequestError(f"{url} refuses the request: {reason}")
    headers = {name.lower(): value for name, value in answer.headers.items()}
    raise _TemporaryFailure(reason, retry_after(headers), is_too_fast=outcome is Fate.SLOW_DOWN)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
