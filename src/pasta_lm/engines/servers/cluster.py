"""Stock servers of one model: least loaded first, lost ones out until they answer again.

A server takes responses once it was introduced and passed the check, a lost one only after both
were repeated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

from pasta_lm import errors
from pasta_lm.engines.servers import client, dialects
from pasta_lm.engines.servers.dialects import CompletionPiece, Dialect, Json, TokenRequest
from pasta_lm.language import tags
from pasta_lm.models.vocabulary import Vocabulary
from pasta_lm.recipe import without_passwords

POLICY = client.RetryPolicy(
    max_requests=4, first_delay_s=0.25, max_retry_after_s=60.0, max_busy_s=300.0
)
_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError)
"""Errors of reading JSON that has another form."""
TEXT = "Rivers: 12,345 km - na\u00efve caf\u00e9, \u65e5\u672c.\n\n\tdef f(a_b): pass"
CLOSINGS = [tags.closing_piece(units) for units in range(1, tags.MAX_UNITS + 1)]
BLOCK = (tags.PROMISE_OPEN, CLOSINGS[0], tags.ASYNC_OPEN, tags.ASYNC_CLOSE, tags.SYNC, CLOSINGS[-1])
QUESTION = "Describe spring, summer, autumn and winter."
MAX_TOPIC_TOKENS = 24  # a taught model ends a topic, which has three words, within so many tokens
EXPORTED = "serve what pasta export MODEL OUT --merged wrote, and name that folder with --model"


@dataclass(slots=True, eq=False, repr=False)
class StockServer:
    """A server: its settings, its load, and what it says of its model."""

    address: str  # without ``/v1``
    _: KW_ONLY
    dialect: Dialect | None = None  # None: as ``/v1/models`` says
    api_key: str | None = None
    timeout_s: float = 60.0  # until the first token, and between two
    policy: client.RetryPolicy = POLICY
    is_up: bool = False  # it takes responses: it was introduced, and has not been lost since
    num_in_flight: int = 0  # responses that it decodes now
    model: str = ""  # the name in requests
    names: tuple[str, ...] = ()  # ``model``, and the model's folder or hub id
    context: int | None = None  # tokens of prompt and answer

    @property
    def url(self) -> str:
        return without_passwords(self.address)


class Connection:
    """Requests to one server; belongs to one event loop."""

    def __init__(self, server: StockServer) -> None:
        self.server = server
        self._client = client.HttpClient(server.address, server.api_key, server.timeout_s)
        self._pause = client.Pause()

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
            server.context = dialects.int_or_none(first.get("max_model_len"))
        except _UNREADABLE as exc:
            raise errors.RemoteError("the reply to /v1/models names no model") from exc
        owners = {dialect.owner: dialect for dialect in dialects.DIALECTS.values()}
        server.dialect = server.dialect or owners.get(owner)
        if server.dialect is None:
            problem = f"{server.url} does not say of which kind it is, but {owner or 'nothing'!r}"
            hint = "name its dialect: --dialect vllm, sglang or llama.cpp"
            raise errors.EndpointError(problem, hint=hint)

    async def ask(self, path: str, body: Json | None = None, *, once: bool = False) -> Json:
        """Return the JSON of a page, or of the reply to a posted body; errors as ``stream``'s."""
        policy = replace(self.server.policy, max_busy_s=0.0)
        policy = replace(policy, max_requests=1) if once else policy
        attempts = client.Attempts(self.server.url, self._pause, policy)
        return await attempts.reply(partial(self._json, path, body))

    async def _json(self, path: str, body: Json | None) -> Json:
        reply = await self._client.send("GET" if body is None else "POST", path, body)
        client.raise_for_status(reply, self.server.url, advice=client.SERVER_ADVICE)
        try:
            data: Json = json.loads(reply.body)
        except ValueError as exc:
            raise client.TemporaryFailure(str(exc)) from exc
        return data

    async def stream(self, request: TokenRequest) -> AsyncIterator[CompletionPiece]:
        """Yield the pieces of a completion, the last one with a finish reason.

        429, 5xx, time-outs and broken connections are retried until the first piece came. A
        RequestError if the server refuses this request, an EndpointError if it refuses all, a
        RemoteError if there is no answer after all retries or the stream broke.
        """
        attempts = client.Attempts(self.server.url, self._pause, self.server.policy)
        has_begun = False
        while True:
            try:
                async for piece in self._stream_once(request):
                    has_begun = has_begun or bool(piece.token_ids)
                    yield piece
                return
            except client.TemporaryFailure as failure:
                if has_begun:
                    raise errors.RemoteError(f"{self.server.url} broke off: {failure}") from failure
                await attempts.wait(failure)

    async def _stream_once(self, request: TokenRequest) -> AsyncIterator[CompletionPiece]:
        await self._pause.over()
        received: list[int] = []
        body = self.dialect.body(self.server.model, request)
        replying = self._client.replying("POST", self.dialect.path, body)
        async with replying as reply:
            if not reply.is_success:
                whole = await client.read_whole(reply)
                client.raise_for_status(whole, self.server.url, advice=client.SERVER_ADVICE)
            async for line in reply.aiter_lines():
                if not line.startswith("data:") or (text := line[5:].strip()) == "[DONE]":
                    continue
                piece = self._read(text, len(received))
                if piece.num_unsent:
                    piece = await self._with_unsent(request, received, piece)
                received += piece.token_ids
                yield piece
                if piece.finish_reason is not None:
                    return
        raise client.TemporaryFailure("the stream ended without a finish reason")

    def _read(self, text: str, num_received: int) -> CompletionPiece:
        with self._understood(text):
            data = json.loads(text)
            if isinstance(data, Mapping) and data.get("error"):
                raise client.TemporaryFailure(f"it reports {str(data['error'])[:200]}")
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
        data = await self._json(self.dialect.path, body)
        with self._understood(str(data)):
            return self.dialect.tokens(data)

    @contextmanager
    def _understood(self, text: str) -> Iterator[None]:
        try:
            yield
        except _UNREADABLE as exc:
            problem = f"{self.server.url} sends what {self.dialect.name} does not: {text[:120]}"
            hint = "is it another kind of server? Name its dialect"
            raise errors.RemoteError(problem, hint=hint) from exc


class Cluster:
    """Connections to all servers, which a ``check`` may refuse; belongs to one event loop."""

    def __init__(
        self, connections: Sequence[Connection], check: Callable[[Connection], Awaitable[None]],
        max_responses: int,
    ) -> None:  # fmt: skip
        self._connections = {connection.server: connection for connection in connections}
        self._check = check
        self._gate = asyncio.Semaphore(max_responses)
        self._watches: dict[StockServer, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Introduce and check the servers, once; one that is up is enough, none a RemoteError."""
        await self._require_any(once=False)
        for server in self._connections:
            self._watch(server)

    async def close(self) -> None:
        """Disconnect; the tasks that ask lost servers end with their event loop."""
        for connection in self._connections.values():
            await connection.close()

    async def _require_any(self, *, once: bool) -> None:
        if any(server.is_up for server in self._connections):
            return
        introductions = [self._introduce(server, once=once) for server in self._connections]
        results = await asyncio.gather(*introductions, return_exceptions=True)
        failures = [error for error in results if error is not None]
        refusals = [error for error in failures if not isinstance(error, errors.RemoteError)]
        if refusals or len(failures) == len(results):
            raise (refusals or failures)[0]

    async def _introduce(self, server: StockServer, *, once: bool) -> None:
        await self._connections[server].introduce(once=once)
        await self._check(self._connections[server])
        server.is_up = True

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[Connection]:
        """Give a response to the server that has the fewest, while the block lasts.

        A server that fails gets no more responses until it answers again. If all are lost, errors
        are those of ``open``.
        """
        async with self._gate:
            await self._require_any(once=True)
            servers = self._connections
            server = min(servers, key=lambda server: (not server.is_up, server.num_in_flight))
            server.num_in_flight += 1
            try:
                yield self._connections[server]
            except errors.RemoteError:
                server.is_up = False
                self._watch(server)
                raise
            finally:
                server.num_in_flight -= 1

    def _watch(self, server: StockServer) -> None:
        if server not in self._watches or self._watches[server].done():
            self._watches[server] = asyncio.create_task(self._ask_until_up(server))

    async def _ask_until_up(self, server: StockServer) -> None:
        pause_s = 0.1
        while not server.is_up:
            try:
                await self._introduce(server, once=True)
            except errors.PastaError:  # also one that came back with another model
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 10.0)


async def check_server(connection: Connection, vocabulary: Vocabulary, *, is_taught: bool) -> None:
    """Check that an introduced server holds the expected model, as far as can be seen.

    Its ids of a text and of the tags must be the vocabulary's, it must keep to barred tokens, and
    a model that ``is_taught`` must end a promise. Other weights of the same family are not told
    apart.
    """
    await _check_ids(connection, vocabulary)
    prompt = vocabulary.encode_prompt([{"role": "user", "content": QUESTION}])
    chosen = await _greedy(connection, TokenRequest(prompt=prompt, max_tokens=1))
    barred = TokenRequest(prompt=prompt, max_tokens=1, barred=chosen)
    if chosen and await _greedy(connection, barred) == chosen:
        reason = f"{connection.server.url} chose token {chosen[0]}, which the request barred"
        hint = "it must keep to logit_bias: PASTA's tags are not legal everywhere"
        raise errors.EndpointError(reason, hint=hint)
    if not (is_taught and vocabulary.has_pieces):
        return
    closing = [vocabulary.piece_id(piece) for piece in CLOSINGS]
    opened = [*prompt, vocabulary.piece_id(tags.PROMISE_OPEN)]
    topic = TokenRequest(prompt=opened, max_tokens=MAX_TOPIC_TOKENS, stop_ids=closing)
    decoded = await _greedy(connection, topic)
    if not set(closing).intersection(decoded):
        problem = f"{connection.server.url} holds a model that was not taught the tags: it began a"
        problem += f" promise with {vocabulary.text(decoded)[:40]!r} and did not end it"
        hint = f"{EXPORTED}; --allow-inexact (servers.allow_inexact) uses it all the same"
        raise errors.ModelError(problem, hint=hint)


async def _check_ids(connection: Connection, vocabulary: Vocabulary) -> None:
    prefix = vocabulary.prompt_prefix
    expected = vocabulary.encode_prompt(TEXT)[len(prefix) :]
    if (ids := await _ids(connection, TEXT)) is None:
        return
    ids = ids[len(prefix) :] if tuple(ids[: len(prefix)]) == prefix else ids
    if ids != expected:
        problem = f"{connection.server.url} has another tokenizer: it encodes {TEXT[:12]!r} as"
        problem += f" {ids[:5]}, the model's as {expected[:5]}"
        raise errors.VocabularyError(problem, hint=EXPORTED)
    if not vocabulary.has_pieces:
        return
    pieces = [vocabulary.piece_id(piece) for piece in BLOCK]
    ids = await _ids(connection, "".join(BLOCK)) or []
    if [token for token in ids if token in pieces] != pieces:
        problem = f"{connection.server.url} has other tags than the model: it encodes them as"
        problem += f" {ids[:8]}, the model's ids are {pieces}"
        raise errors.VocabularyError(problem, hint=EXPORTED)


async def _ids(connection: Connection, text: str) -> list[int] | None:
    """Return the server's ids of a text; None if it has no page that encodes."""
    dialect = connection.dialect
    body = dialect.tokenize_body(connection.server.model, text)
    try:
        return dialect.tokens(await connection.ask(dialect.tokenize_path, body))
    except (errors.EndpointError, errors.RequestError, KeyError, TypeError, ValueError):
        return None  # a version, or something in front of it, that has no such page


async def _greedy(connection: Connection, request: TokenRequest) -> list[int]:
    token_ids: list[int] = []
    async for piece in connection.stream(request):
        token_ids += piece.token_ids
        if piece.matched is not None and token_ids[-1:] != [piece.matched]:
            token_ids.append(piece.matched)
    return token_ids
