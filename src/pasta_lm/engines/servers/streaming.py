"""Stream completions of token ids from a stock server; retries come before the first token only.

Importing this file needs the extra ``data``. A dialect has the spelling of requests and replies.
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

from pasta_lm.engines.servers.client import HttpClient
from pasta_lm.engines.servers.dialects import (
    DIALECTS,
    KEY_ENV,
    Dialect,
    Piece,
    TokenRequest,
    dialect_of,
    read_models,
)
from pasta_lm.engines.servers.request_pace import (
    ADVICE,
    RequestPace,
    RetryPolicy,
    TemporaryFailure,
    raise_for_status,
    without_password,
)
from pasta_lm.errors import EndpointError, RemoteError, RequestError

POLICY = RetryPolicy(max_requests=4, first_delay_s=0.25, max_retry_after_s=60.0)
MAX_IN_FLIGHT = 1024
"""Completions of one server; it is lowered while the server answers 429."""
MAX_BUSY_S = 300.0
"""Longest time that a completion waits for a server that answers 429."""
SERVER_ADVICE = {
    **ADVICE,
    401: f"its key is missing or wrong: set the environment variable {KEY_ENV}",
    404: "it has no such page or model: check the address and the dialect",
}
_DATA, _DONE = "data:", "[DONE]"


class StockServer:
    """A server: address, model, dialect and load.

    Attributes:
        url: Without ``/v1`` and without a password.
        is_up: Whether it takes responses: it was introduced, and has not been lost since.
        num_in_flight: Responses that it decodes now.
        model: The name in requests.
        names: Of the model: ``model``, and its folder or hub id if the server has told it.
        context: Tokens of prompt and answer, if the server has told it.
    """

    def __init__(
        self,
        url: str,
        *,
        dialect: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        policy: RetryPolicy = POLICY,
        busy_s: float = MAX_BUSY_S,
    ) -> None:
        """Keep the settings; nothing is sent. A UsageError if there is no such dialect.

        Args:
            url: The address without ``/v1``.
            dialect: A name in ``DIALECTS``; None: detected from the server's pages.
            api_key: Sent as a bearer token.
            timeout_s: Until the first token, and between two of them.
            policy: Number of requests and delays, until the first token.
            busy_s: How long a completion waits for a server that answers 429.
        """
        self.url = without_password(url)
        self.num_in_flight = 0
        self.is_up = False
        self.dialect = None if dialect is None else dialect_of(dialect)
        self.model: str | None = None
        self.names: tuple[str, ...] = ()
        self.context: int | None = None
        self.policy = policy
        self.busy_s = busy_s
        self._address, self._api_key, self._timeout_s = url, api_key, timeout_s

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """Open a connection for the running event loop; nothing is sent."""
        client = HttpClient(self._address, self._api_key, self._timeout_s)
        try:
            yield Connection(self, client)
        finally:
            await client.close()


class Connection:
    """Requests to one server; belongs to one event loop."""

    def __init__(self, server: StockServer, client: HttpClient) -> None:
        self.server = server
        self._client = client
        self._random = Random()
        self._pace = RequestPace(MAX_IN_FLIGHT, MAX_IN_FLIGHT)

    @property
    def known(self) -> tuple[Dialect, str]:
        """Return the dialect and the model of a server that was introduced."""
        dialect, model = self.server.dialect, self.server.model
        assert dialect is not None
        assert model is not None
        return dialect, model

    async def introduce(self, *, max_requests: int | None = None) -> None:
        """Read the server's model and, unless it is known, its dialect.

        Raises:
            RemoteError: it cannot be reached, or its answer is unusable.
            EndpointError: it refuses every request, or its dialect is unknown.
        """
        server = self.server
        first = read_models(await self.ask("/v1/models", max_requests=max_requests))
        server.model, server.context = first.model, first.context
        server.names = tuple(name for name in (first.model, first.root) if name)
        server.dialect = server.dialect or first.dialect or await self._detected_dialect()
        if server.dialect is None:
            raise EndpointError(
                f"{server.url} does not say of which kind it is, but {first.owner or 'nothing'!r}",
                hint="name its dialect: --dialect vllm, sglang or llama.cpp",
            )

    async def _detected_dialect(self) -> Dialect | None:
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
        """Return the JSON of a page, or of the reply to a posted body; errors as ``stream``'s."""
        for num_sent in count(1):
            try:
                return await self._ask_once(path, body)
            except (ValueError, TemporaryFailure) as exc:
                await self._wait(exc, num_sent, max_requests)
        raise AssertionError("the last attempt raises")

    async def _ask_once(self, path: str, body: Mapping[str, Any] | None) -> Any:
        reply = await self._client.send("GET" if body is None else "POST", path, body)
        raise_for_status(reply, self.server.url, advice=SERVER_ADVICE)
        return json.loads(reply.body)

    async def stream(self, request: TokenRequest) -> AsyncIterator[Piece]:
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
            except TemporaryFailure as exc:
                if has_begun:
                    raise RemoteError(f"{self.server.url} broke off: {exc}") from exc
                if exc.is_too_fast:
                    num_refused += 1
                    delay_s = self._delay_s(exc, num_refused)
                    if time.monotonic() + delay_s < give_up_s:
                        self._pace.shrink(era)
                        await self._pace.pause(delay_s)
                        continue
                    num_failed = self.server.policy.max_requests
                num_failed += 1
                await self._wait(exc, num_failed)

    async def _stream_once(self, request: TokenRequest) -> AsyncIterator[Piece]:
        dialect, model = self.known
        received: list[int] = []
        body = dialect.body(model, request)
        async with self._client.lines(dialect.path, body, SERVER_ADVICE) as lines:
            async for line in lines:
                if not line.startswith(_DATA) or (text := line[len(_DATA) :].strip()) == _DONE:
                    continue
                piece = _read(dialect, text, len(received), self.server.url)
                if piece.num_unsent:
                    piece = await self._with_unsent(request, received, piece)
                received += piece.token_ids
                yield piece
                if piece.finish_reason is not None:
                    return
        raise TemporaryFailure("the stream ended without a finish reason")

    async def _with_unsent(self, request: TokenRequest, received: list[int], piece: Piece) -> Piece:
        """Return a piece with the tokens that the server left out of the stream before it.

        The same completion is requested again, not streamed. If it then goes another way, which a
        near-tie can cause, the completion ends here and the next one goes on behind it.
        """
        num_due = piece.num_unsent + len(piece.token_ids)
        token_ids: list[int] | None = None
        if request.temperature > 0:  # the seed draws the same only from the beginning
            again = replace(request, max_tokens=len(received) + num_due)
            whole = await self._whole(again)
            token_ids = whole[len(received) :] if whole[: len(received)] == received else None
        if token_ids is None:
            behind = [*request.prompt, *received]
            token_ids = await self._whole(replace(request, prompt=behind, max_tokens=num_due))
        tail = [*piece.token_ids]
        if tail and len(token_ids) == num_due and token_ids[-len(tail) :] == tail:
            return replace(piece, token_ids=token_ids, num_unsent=0)
        return Piece(token_ids, "length")

    async def _whole(self, request: TokenRequest) -> list[int]:
        """Return the ids of a completion that is not streamed."""
        dialect, model = self.known
        assert dialect.whole is not None
        body = dialect.body(model, request) | {"stream": False}
        reply = await self._client.send("POST", dialect.path, body)
        raise_for_status(reply, self.server.url, advice=SERVER_ADVICE)
        text = reply.body.decode(errors="replace")
        with _understood(dialect, text, self.server.url):
            return [*dialect.whole(json.loads(text))]

    async def _wait(self, error: Exception, num_sent: int, limit: int | None = None) -> None:
        """Wait before the next attempt; raise a ``RemoteError`` if there is none left."""
        policy = self.server.policy
        delay_s = self._delay_s(error, num_sent)
        if num_sent >= (limit or policy.max_requests) or delay_s > policy.max_retry_after_s:
            times = f"{num_sent} request{'s' if num_sent > 1 else ''}"
            raise RemoteError(
                f"{self.server.url}: no answer after {times}, the last: {error}"
            ) from error
        await asyncio.sleep(delay_s)

    def _delay_s(self, error: Exception, num_failed: int) -> float:
        wanted_s = error.retry_after_s if isinstance(error, TemporaryFailure) else None
        return (wanted_s or 0.0) + self.server.policy.delay_s(num_failed, self._random)


def _read(dialect: Dialect, text: str, num_received: int, url: str) -> Piece:
    with _understood(dialect, text, url):
        data: Any = json.loads(text)
        if isinstance(data, Mapping) and data.get("error"):
            raise TemporaryFailure(f"it reports {str(data['error'])[:200]}")
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
