"""HTTP clients of model servers: whole replies, streams of lines, completions of token ids.

Importing this file needs the extra ``data``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import httpx2 as httpx

from pasta_lm.engines.servers.dialects import (
    DIALECTS,
    KEY_ENV,
    CompletionPiece,
    Dialect,
    Json,
    TokenRequest,
    int_or_none,
)
from pasta_lm.engines.servers.request_pace import (
    ADVICE,
    Attempts,
    HttpReply,
    Pause,
    RetryPolicy,
    TemporaryFailure,
    check_address,
    raise_for_status,
)
from pasta_lm.errors import EndpointError, RemoteError
from pasta_lm.recipe import without_passwords

MAX_REPLY_BYTES = 64 * 2**20
"""A longer reply is not kept in memory."""
CONNECT_S = 5.0
POLICY = RetryPolicy(max_requests=4, first_delay_s=0.25, max_retry_after_s=60.0, max_busy_s=300.0)
SERVER_ADVICE = {
    **ADVICE,
    401: f"its key is missing or wrong: set the environment variable {KEY_ENV}",
    404: "it has no such page or model: check the address and the dialect",
}
_DATA, _DONE = "data:", "[DONE]"
_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError)
"""Errors of reading JSON that has another form."""


class HttpClient:
    """HTTP to one server, without retries; ignores proxies and keys of the environment."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float | None = None) -> None:
        """Prepare to connect; a UsageError if the URL is not an HTTP address.

        ``timeout_s`` bounds the time until the first part of a reply, and between two.
        """
        check_address(url)
        self._url = url.rstrip("/")
        self._client = httpx.AsyncClient(
            timeout=timeout_s and httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
            verify=url.startswith("https"),  # reading certificates takes a while
        )
        del self._client.headers["User-Agent"]
        if api_key is not None:
            self._client.headers["Authorization"] = f"Bearer {api_key}"

    async def send(self, method: str, path: str, body: Json | None = None) -> HttpReply:
        """Return the whole reply, whatever its status; a TemporaryFailure if there is none."""
        async with self.replying(method, path, body) as reply:
            return await read_whole(reply)

    @asynccontextmanager
    async def replying(
        self, method: str, path: str, body: Json | None
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and give its reply to be read; a TemporaryFailure if that breaks."""
        try:
            async with self._client.stream(method, f"{self._url}{path}", json=body) as reply:
                yield reply
        except (httpx.HTTPError, httpx.StreamError) as exc:
            raise TemporaryFailure(f"no connection, or it broke: {exc!r}") from exc

    async def close(self) -> None:
        await self._client.aclose()


async def read_whole(reply: httpx.Response) -> HttpReply:
    data = bytearray()
    async for piece in reply.aiter_bytes():
        data += piece
        if len(data) > MAX_REPLY_BYTES:
            raise TemporaryFailure(f"the reply has more than {MAX_REPLY_BYTES} bytes")
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return HttpReply(reply.status_code, headers, bytes(data))


@dataclass(slots=True, eq=False, repr=False)
class StockServer:
    """A server: its settings, its load, and its own words about its model."""

    address: str  # without ``/v1``
    _: KW_ONLY
    dialect: Dialect | None = None  # None: as ``/v1/models`` says
    api_key: str | None = None
    timeout_s: float = 60.0  # until the first token, and between two
    policy: RetryPolicy = POLICY
    is_up: bool = False  # it takes responses: it was introduced, and has not been lost since
    num_in_flight: int = 0  # responses that it decodes now
    model: str = ""  # the name in requests
    names: tuple[str, ...] = ()  # of the model: ``model``, and its folder or hub id
    context: int | None = None  # tokens of prompt and answer

    @property
    def url(self) -> str:
        return without_passwords(self.address)

    def connection(self) -> Connection:
        return Connection(self)


class Connection:
    """Requests to one server; belongs to one event loop."""

    def __init__(self, server: StockServer) -> None:
        self.server = server
        self._client = HttpClient(server.address, server.api_key, server.timeout_s)
        self._pause = Pause()

    async def close(self) -> None:
        await self._client.close()

    @property
    def dialect(self) -> Dialect:
        assert self.server.dialect is not None
        return self.server.dialect

    async def introduce(self, *, once: bool) -> None:
        """Read the server's model and, unless known, its dialect; ``once``: at the first try."""
        server, listed = self.server, await self.ask("/v1/models", once=once)
        try:
            first = listed["data"][0]
            server.model, owner = str(first["id"]), str(first.get("owned_by") or "")
            server.names = tuple(str(name) for name in (server.model, first.get("root")) if name)
            server.context = int_or_none(first.get("max_model_len"))
        except _UNREADABLE as exc:
            raise RemoteError("the reply to /v1/models names no model") from exc
        owners = {dialect.owner: dialect for dialect in DIALECTS.values()}
        server.dialect = server.dialect or owners.get(owner)
        if server.dialect is None:
            raise EndpointError(
                f"{server.url} does not say of which kind it is, but {owner or 'nothing'!r}",
                hint="name its dialect: --dialect vllm, sglang or llama.cpp",
            )

    async def ask(self, path: str, body: Json | None = None, *, once: bool = False) -> Any:
        """Return the JSON of a page, or of the reply to a posted body; errors as ``stream``'s."""
        policy = self.server.policy
        max_requests = 1 if once else policy.max_requests
        policy = replace(policy, max_requests=max_requests, max_busy_s=0.0)
        return await Attempts(self.server.url, self._pause, policy).reply(
            partial(self._json, path, body)
        )

    async def _json(self, path: str, body: Json | None) -> Any:
        try:
            return json.loads(await self._body(path, body))
        except ValueError as exc:
            raise TemporaryFailure(str(exc)) from exc

    async def _body(self, path: str, body: Json | None) -> bytes:
        reply = await self._client.send("GET" if body is None else "POST", path, body)
        raise_for_status(reply, self.server.url, advice=SERVER_ADVICE)
        return reply.body

    async def stream(self, request: TokenRequest) -> AsyncIterator[CompletionPiece]:
        """Yield the pieces of a completion, the last one with a finish reason.

        429, 5xx, time-outs and broken connections are retried until the first piece came.

        Raises:
            RequestError: the server refuses this request; others may succeed.
            EndpointError: it refuses every request.
            RemoteError: no answer after all retries, or the stream broke.
        """
        attempts, has_begun = Attempts(self.server.url, self._pause, self.server.policy), False
        while True:
            try:
                async for piece in self._stream_once(request):
                    has_begun = has_begun or bool(piece.token_ids)
                    yield piece
                return
            except TemporaryFailure as failure:
                if has_begun:
                    raise RemoteError(f"{self.server.url} broke off: {failure}") from failure
                await attempts.wait(failure)

    async def _stream_once(self, request: TokenRequest) -> AsyncIterator[CompletionPiece]:
        await self._pause.over()
        received: list[int] = []
        body = self.dialect.body(self.server.model, request)
        replying = self._client.replying("POST", self.dialect.path, body)
        async with replying as reply:
            if not reply.is_success:
                raise_for_status(await read_whole(reply), self.server.url, advice=SERVER_ADVICE)
            async for line in reply.aiter_lines():
                if not line.startswith(_DATA) or (text := line[len(_DATA) :].strip()) == _DONE:
                    continue
                piece = self._read(text, len(received))
                if piece.num_unsent:
                    piece = await self._with_unsent(request, received, piece)
                received += piece.token_ids
                yield piece
                if piece.finish_reason is not None:
                    return
        raise TemporaryFailure("the stream ended without a finish reason")

    def _read(self, text: str, num_received: int) -> CompletionPiece:
        with self._understood(text):
            data = json.loads(text)
            if isinstance(data, Mapping) and data.get("error"):
                raise TemporaryFailure(f"it reports {str(data['error'])[:200]}")
            return self.dialect.piece(data, num_received)

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
            whole = await self._completed(replace(request, max_tokens=len(received) + num_due))
            token_ids = whole[len(received) :] if whole[: len(received)] == received else None
        if token_ids is None:
            behind = [*request.prompt, *received]
            token_ids = await self._completed(replace(request, prompt=behind, max_tokens=num_due))
        tail = [*piece.token_ids]
        if tail and len(token_ids) == num_due and token_ids[-len(tail) :] == tail:
            return replace(piece, token_ids=token_ids, num_unsent=0)
        return CompletionPiece(token_ids, "length")

    async def _completed(self, request: TokenRequest) -> list[int]:
        body = self.dialect.body(self.server.model, request) | {"stream": False}
        text = (await self._body(self.dialect.path, body)).decode(errors="replace")
        with self._understood(text):
            return self.dialect.tokens(json.loads(text))

    @contextmanager
    def _understood(self, text: str) -> Iterator[None]:
        try:
            yield
        except _UNREADABLE as exc:
            raise RemoteError(
                f"{self.server.url} sends what {self.dialect.name} does not: {text[:120]}",
                hint="is it another kind of server? Name its dialect",
            ) from exc
