"""Several servers of one model: least loaded first, lost ones out until they answer again.

A server takes responses once it was introduced and passed the check, a lost one only after both
were repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pasta_lm import errors
from pasta_lm.engines.servers.dialects import TokenRequest
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    MAX_UNITS,
    PROMISE_OPEN,
    SYNC,
    closing_piece,
)

if TYPE_CHECKING:
    from pasta_lm.engines.servers.client import Connection, StockServer
    from pasta_lm.models.vocabulary import Vocabulary

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0
TEXT = "Rivers: 12,345 km - na\u00efve caf\u00e9, \u65e5\u672c.\n\n\tdef f(a_b): pass"
TAGS = (PROMISE_OPEN, closing_piece(1), ASYNC_OPEN, ASYNC_CLOSE, SYNC, closing_piece(MAX_UNITS))
QUESTION = "Describe spring, summer, autumn and winter."
MAX_TOPIC_TOKENS = 24
"""A taught model ends a topic, which has three words, within so many tokens."""
ADVICE = "serve what pasta export MODEL OUT --merged wrote, and name that folder with --model"

Check = Callable[["Connection"], Awaitable[None]]
"""Raises an error if a server cannot be used."""


class Cluster:
    """Connections to all servers; belongs to one event loop."""

    def __init__(self, connections: Sequence[Connection], check: Check, max_responses: int) -> None:
        self._connections = {connection.server: connection for connection in connections}
        self._check = check
        self._gate = asyncio.Semaphore(max_responses)
        self._watches: dict[StockServer, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Introduce and check the servers unless that was done before; one that is up is enough.

        Raises:
            RemoteError: none can be reached.
            EndpointError: one refuses every request, or its dialect is unknown.
            PastaError: one fails the check.
        """
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

        A server that fails gets no more responses until it answers again.

        Raises:
            RemoteError: all are lost, and none answers now.
            PastaError: as ``open``.
        """
        async with self._gate:
            await self._require_any(once=True)
            servers = [*self._connections]
            server = min(servers, key=lambda each: (not each.is_up, each.num_in_flight))
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
        pause_s = FIRST_PAUSE_S
        while not server.is_up:
            try:
                await self._introduce(server, once=True)
            except errors.PastaError:  # also one that came back with another model
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)


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
        hint = "it must keep to logit_bias: PASTA's tags are legal in some places only"
        raise errors.EndpointError(reason, hint=hint)
    if not (is_taught and vocabulary.has_pieces):
        return
    closing = [vocabulary.piece_id(closing_piece(units)) for units in range(1, MAX_UNITS + 1)]
    opened = [*prompt, vocabulary.piece_id(PROMISE_OPEN)]
    topic = TokenRequest(prompt=opened, max_tokens=MAX_TOPIC_TOKENS, stop_ids=closing)
    decoded = await _greedy(connection, topic)
    if not set(closing).intersection(decoded):
        raise errors.ModelError(
            f"{connection.server.url} holds a model that was not taught the tags: it began a "
            f"promise with {vocabulary.text(decoded)[:40]!r} and did not end it",
            hint=f"{ADVICE}; --allow-inexact (servers.allow_inexact) uses it all the same",
        )


async def _check_ids(connection: Connection, vocabulary: Vocabulary) -> None:
    prefix = vocabulary.prompt_prefix
    own = vocabulary.encode_prompt(TEXT)[len(prefix) :]
    ids = await _ids(connection, TEXT)
    if ids is None:
        return
    if tuple(ids[: len(prefix)]) == prefix:
        ids = ids[len(prefix) :]
    if ids != own:
        raise errors.VocabularyError(
            f"{connection.server.url} has another tokenizer: it encodes {TEXT[:12]!r} as "
            f"{ids[:5]}, the model's as {own[:5]}",
            hint=ADVICE,
        )
    if not vocabulary.has_pieces:
        return
    pieces = [vocabulary.piece_id(piece) for piece in TAGS]
    ids = await _ids(connection, "".join(TAGS)) or []
    if [token for token in ids if token in pieces] != pieces:
        raise errors.VocabularyError(
            f"{connection.server.url} has other tags than the model: it encodes them as "
            f"{ids[:8]}, the model's ids are {pieces}",
            hint=ADVICE,
        )


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
