"""The engine on stock servers: vLLM, SGLang or llama.cpp's, with nothing installed in them.

The interpreter runs here; every thread is a streaming completion there. It is exact for what is a
plain causal text: positions ``continue`` and, from a sync on, join ``recompute``. A response
stays on one server, where its prefix is cached; responses are spread by load.

Source: ``docs/architecture.md``, the rules of decoding.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Answer, Finished, Request, StreamEvent
from pasta_lm.engines.response import Response
from pasta_lm.engines.streamed_response import StreamedResponse
from pasta_lm.engines.vocabulary import Vocabulary
from pasta_lm.errors import MissingExtraError, RequestError, UsageError
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.join import Join
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind, Trace
from pasta_lm.language.parser import Form
from pasta_lm.remote.background import first_error, yielded_beside
from pasta_lm.remote.dialects import server_urls

if TYPE_CHECKING:
    from pasta_lm.remote.streaming import Connection, StockServer

MAX_RESPONSES = 64
"""Responses that are decoded at once; others wait here, not in the servers."""

_Put = Callable[[tuple[int, StreamEvent]], None]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The facts of a model whose weights are in servers."""

    vocabulary: Vocabulary
    eos_ids: frozenset[int]  # all ids that end main
    name: str | None = None  # for the trace; None: as the server calls it
    max_position: int | None = None  # the last position that it may be given
    positions: PositionStrategy = PositionStrategy.CONTINUE  # those that it was trained with
    join: Join = Join.RECOMPUTE
    trained_strategy: str = "pasta"

    def join_with(self, positions: PositionStrategy) -> Join:
        """Return the join that it was trained with, as far as it goes with positions."""
        return self.join if positions is self.positions else Join.SHARED


class CompletionsEngine:
    """Decode requests on servers of the same model."""

    def __init__(
        self,
        servers: Sequence[StockServer],
        loaded: ServedModel,
        *,
        allow_inexact: bool = False,
    ) -> None:
        """Keep the servers; nothing is sent.

        Args:
            servers: At least one.
            loaded: The model that they hold.
            allow_inexact: Decode requests with other positions, or with another join, as if they
                had those that a server can compute.

        Raises:
            UsageError: there is no server.
        """
        if not servers:
            raise UsageError("no server is named", hint="for example http://localhost:8000")
        self.servers = tuple(servers)
        self.loaded = loaded
        self._allow_inexact = allow_inexact

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Decode requests together and return each one's samples, in order; errors as ``stream``'s.

        An error of one request ends all.
        """
        found: list[dict[int, Answer]] = [{} for _ in requests]
        for number, event in self._decode(requests):
            if isinstance(event, Finished):
                found[number][event.sample] = event.answer
        return [[samples[one] for one in sorted(samples)] for samples in found]

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        """Decode one request and yield its events; closing the iterator aborts it.

        Raises:
            RequestError: a server cannot carry it out exactly, or refuses it.
            RemoteError: no server answers; a ``BrokenAnswerError`` if it failed inside the answer.
            EndpointError: a server refuses every request.
        """
        for _, event in self._decode([request]):
            yield event

    def _decode(self, requests: Sequence[Request]) -> Iterator[tuple[int, StreamEvent]]:
        checked = [self._checked(request) for request in requests]

        async def decode_all(put: _Put) -> None:
            gate = asyncio.Semaphore(MAX_RESPONSES)
            async with AsyncExitStack() as stack:
                opened = [stack.enter_async_context(server.connected()) for server in self.servers]
                connections = [await one for one in opened]
                try:
                    async with asyncio.TaskGroup() as group:
                        for number, request in enumerate(checked):
                            for sample in range(request.params.n):
                                streamed = number, request, sample, connections, put
                                group.create_task(self._decode_one(gate, *streamed))
                except ExceptionGroup as errors:
                    raise first_error(errors) from None

        return yielded_beside(decode_all)

    async def _decode_one(
        self,
        gate: asyncio.Semaphore,
        number: int,
        request: Request,
        sample: int,
        connections: Sequence[Connection],
        put: _Put,
    ) -> None:
        async with gate:
            connection = min(connections, key=lambda one: one.server.num_responses)
            connection.server.num_responses += 1
            try:
                await self._streamed(number, request, sample, connection, put).run()
            finally:
                connection.server.num_responses -= 1

    def _streamed(
        self, number: int, request: Request, sample: int, connection: Connection, put: _Put
    ) -> StreamedResponse:
        trace = Trace(
            kind=Kind.GENERATED,
            model=self.loaded.name or connection.server.model,
            engine="completions",
            strategy=request.strategy,
            positions=request.positions.value,
            join=request.join.value,
            num_prompt_tokens=len(request.prompt),
        )
        response = Response(
            request,
            sample,
            Entries.of_prompt(request.prompt),  # a server shares the prompt of samples by itself
            self.loaded.vocabulary,
            limits=request.limits(self.loaded.max_position),
            trace=trace,
            eos_ids=self.loaded.eos_ids,
        )
        return StreamedResponse(
            response,
            connection,
            self.loaded.vocabulary,
            self.loaded.eos_ids,
            put=lambda event: put((number, event)),
        )

    def _checked(self, request: Request) -> Request:
        """Return a request as servers carry it out; refuse what they cannot.

        Raises:
            RequestError: see ``stream``.
        """
        last = self.loaded.max_position
        if not request.prompt:
            raise RequestError("the prompt is empty", hint="give at least one token")
        if last is not None and len(request.prompt) > last:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens, the model's context is {last + 1}",
                hint="shorten the prompt",
            )
        if request.forced is not None:
            raise RequestError("a stock server decodes its model's answer, not a given one")
        if request.params.repetition_penalty != 1.0:
            raise RequestError(
                "a stock server's repetition penalty counts tag pieces, ours does not",
                hint="leave it at 1",
            )
        if request.params.logprobs is not None:
            raise RequestError(
                "log-probabilities of a stock server are not read", hint="leave it out"
            )
        if request.params.seed is None:
            fresh = replace(request.params, seed=secrets.randbits(31))
            request = replace(request, params=fresh)
        return replace(self._with_plain_sequences(request), guess=None)

    def _with_plain_sequences(self, request: Request) -> Request:
        plain = PositionStrategy.CONTINUE
        if not request.forks:  # a single thread: all strategies and joins are the same
            return replace(request, positions=plain, join=Join.SHARED)
        has_syncs = request.form is Form.MAIN
        join = Join.RECOMPUTE if has_syncs else Join.SHARED
        is_exact = request.positions is plain and request.join is join
        if not is_exact and not self._allow_inexact:
            trained = self.loaded
            raise RequestError(
                f"positions {request.positions.value!r} with join {request.join.value!r} are not "
                "exact on a stock server, which computes plain causal texts",
                hint=f"the model was trained with {trained.positions.value!r} and "
                f"{trained.join.value!r}; --allow-inexact decodes it as {plain.value!r} and "
                f"{join.value!r}",
            )
        return replace(request, positions=plain, join=join)


def connect(addresses: str, *, dialect: str | None = None) -> list[StockServer]:
    """Return the servers at addresses that a comma separates; nothing is sent.

    Raises:
        MissingExtraError: httpx2 is not installed.
        UsageError: an unknown dialect.
    """
    if not find_spec("httpx2"):
        raise MissingExtraError(f"asking {addresses}", "data")
    from pasta_lm.remote.streaming import StockServer

    return [StockServer(url, dialect=dialect) for url in server_urls(addresses)]
