"""HTTP clients of model servers: whole replies, streams of lines, completions of token ids.

Importing this file needs the extra ``data``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx2 as httpx

from pasta_lm.engines.servers.dialects import (
    DIALECTS,
    KEY_ENV,
    CompletionPiece,
    Dialect,
    TokenRequest,
    dialect_of,
    read_models,
)
from pasta_lm.engines.servers.request_pace import (
    ADVICE,
    Attempts,
    HttpReply,
    RequestPace,
    RetryPolicy,
    TemporaryFailure,
    check_address,
    raise_for_status,
)
from pasta_lm.errors import EndpointError, RemoteError, RequestError
from pasta_lm.recipe import without_passwords

MAX_REPLY_BYTES = 64 * 2**20
"""A longer reply is not kept in memory."""
CONNECT_S = 5.0
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


class HttpClient:
    """HTTP to one server, without retries; ignores proxies and keys of the environment."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float | None = None) -> None:
        """Prepare to connect; a UsageError if the URL is not an HTTP address.

        ``timeout_s`` bounds the time until the first part of a reply, and between two.
        """
        check_address(url)
        self.address = without_passwords(url)
        self._url = url.rstrip("/")
        timeout = timeout_s and httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None)
        self._client = httpx.AsyncClient(
            timeout=timeout,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
            verify=url.startswith("https"),  # reading certificates takes a while
        )
        del self._client.headers["User-Agent"]
        if api_key is not None:
            self._client.headers["Authorization"] = f"Bearer {api_key}"

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> HttpReply:
        """Return the whole reply, whatever its status; a TemporaryFailure if there is none."""
        with self._broken():
            async with self._client.stream(method, f"{self._url}{path}", json=body) as reply:
                return await _whole(reply)

    @asynccontextmanager
    async def lines(
        self, path: str, body: Mapping[str, Any], advice: Mapping[int, str]
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Post a request and give the lines of its reply; errors as of ``raise_for_status``."""
        with self._broken():
            async with self._client.stream("POST", f"{self._url}{path}", json=body) as reply:
                if not reply.is_success:
                    raise_for_status(await _whole(reply), self.address, advice=advice)
                yield reply.aiter_lines()

    async def close(self) -> None:
        await self._client.aclose()

    @staticmethod
    @contextmanager
    def _broken() -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError) as exc:
            raise TemporaryFailure(f"no connection, or it broke: {exc!r}") from exc


async def _whole(reply: httpx.Response) -> HttpReply:
    data = bytearray()
    async for piece in reply.aiter_bytes():
        data += piece
        if len(data) > MAX_REPLY_BYTES:
            raise TemporaryFailure(f"the reply has more than {MAX_REPLY_BYTES} bytes")
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return HttpReply(reply.status_code, headers, bytes(data))


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

        ``timeout_s`` bounds the time until the first token and between two, ``busy_s`` that of
        429s. The dialect is detected from the server's pages if it is None.
        """
        self.url = without_passwords(url)
        self.num_in_flight = 0
        self.is_up = False
        self.dialect = None if dialect is None else dialect_of(dialect)
        self.model = ""
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
        self._pace = RequestPace(MAX_IN_FLIGHT, MAX_IN_FLIGHT)

    @property
    def dialect(self) -> Dialect:
        """Return the dialect of a server that was introduced."""
        assert self.server.dialect is not None
        return self.server.dialect

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
        for dialect in DIALECTS.values():
            path, key = dialect.known_by
            with suppress(RemoteError, RequestError, EndpointError):
                if key in await self.ask(path, max_requests=1):
                    return dialect
        return None

    async def ask(
        self, path: str, body: Mapping[str, Any] | None = None, *, max_requests: int | None = None
    ) -> Any:
        """Return the JSON of a page, or of the reply to a posted body; errors as ``stream``'s."""
        policy = self.server.policy
        policy = replace(policy, max_requests=max_requests or policy.max_requests)
        attempts = Attempts(self.server.url, self._pace, policy)
        while True:
            try:
                return json.loads(await self._body(path, body))
            except TemporaryFailure as failure:
                await attempts.wait(failure)
            except ValueError as exc:
                await attempts.wait(TemporaryFailure(str(exc)))

    async def _body(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        reply = await self._client.send("GET" if body is None else "POST", path, body)
        raise_for_status(reply, self.server.url, advice=SERVER_ADVICE)
        return reply.body

    async def stream(self, request: TokenRequest) -> AsyncIterator[CompletionPiece]:
        """Yield the pieces of a completion, the last one with a finish reason.

        5xx, time-outs and broken connections are retried until the first piece came. A 429 counts
        as no failure: the completions of this server wait, fewer are sent at once, and it is
        given up after ``busy_s``.

        Raises:
            RequestError: the server refuses this request; others may succeed.
            EndpointError: it refuses every request.
            RemoteError: no answer after all retries, or the stream broke.
        """
        server = self.server
        attempts = Attempts(server.url, self._pace, server.policy, busy_s=server.busy_s)
        while not attempts.has_succeeded:
            async for piece in self._attempt(request, attempts):
                yield piece

    async def _attempt(
        self, request: TokenRequest, attempts: Attempts
    ) -> AsyncIterator[CompletionPiece]:
        has_begun = False
        try:
            async with self._pace.slot() as era:
                async for piece in self._stream_once(request):
                    has_begun = has_begun or bool(piece.token_ids)
                    yield piece
            self._pace.grow(era)
            attempts.has_succeeded = True
        except TemporaryFailure as failure:
            if has_begun:
                raise RemoteError(f"{self.server.url} broke off: {failure}") from failure
            await attempts.wait(failure, era)

    async def _stream_once(self, request: TokenRequest) -> AsyncIterator[CompletionPiece]:
        dialect = self.dialect
        received: list[int] = []
        body = dialect.body(self.server.model, request)
        async with self._client.lines(dialect.path, body, SERVER_ADVICE) as lines:
            async for line in lines:
                if not line.startswith(_DATA) or (text := line[len(_DATA) :].strip()) == _DONE:
                    continue
                with self._understood(text):
                    piece = _read(dialect, text, len(received))
                if piece.num_unsent:
                    piece = await self._with_unsent(request, received, piece)
                received += piece.token_ids
                yield piece
                if piece.finish_reason is not None:
                    return
        raise TemporaryFailure("the stream ended without a finish reason")

    async def _with_unsent(
        self, request: TokenRequest, received: list[int], piece: CompletionPiece
    ) -> CompletionPiece:
        """Return a piece with the tokens that the server left out of the stream before it.

        The same completion is requested again, not streamed. If it then goes another way, which a
        near-tie can cause, the completion ends here and the next one goes on behind it.
        """
        num_due = piece.num_unsent + len(piece.token_ids)
        token_ids: list[int] | None = None
        if request.temperature > 0:  # the seed draws the same only from the beginning
            whole = await self._whole(replace(request, max_tokens=len(received) + num_due))
            token_ids = whole[len(received) :] if whole[: len(received)] == received else None
        if token_ids is None:
            behind = [*request.prompt, *received]
            token_ids = await self._whole(replace(request, prompt=behind, max_tokens=num_due))
        tail = [*piece.token_ids]
        if tail and len(token_ids) == num_due and token_ids[-len(tail) :] == tail:
            return replace(piece, token_ids=token_ids, num_unsent=0)
        return CompletionPiece(token_ids, "length")

    async def _whole(self, request: TokenRequest) -> list[int]:
        dialect = self.dialect
        assert dialect.whole is not None
        body = dialect.body(self.server.model, request) | {"stream": False}
        text = (await self._body(dialect.path, body)).decode(errors="replace")
        with self._understood(text):
            return [*dialect.whole(json.loads(text))]

    @contextmanager
    def _understood(self, text: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
            raise RemoteError(
                f"{self.server.url} sends what {self.dialect.name} does not: {text[:120]}",
                hint="is it another kind of server? Name its dialect",
            ) from exc


def _read(dialect: Dialect, text: str, num_received: int) -> CompletionPiece:
    data: Any = json.loads(text)
    if isinstance(data, Mapping) and data.get("error"):
        raise TemporaryFailure(f"it reports {str(data['error'])[:200]}")
    return dialect.piece(data, num_received)
