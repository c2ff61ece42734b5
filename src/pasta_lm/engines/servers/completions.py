"""The engine on stock servers: vLLM, SGLang or llama.cpp's, with nothing installed in them.

The interpreter runs here; every thread is a streaming completion there. It is exact for plain
causal texts: positions ``continue`` and, from a sync on, join ``recompute``. A response stays on
one server, where its prefix is cached; responses are spread by load.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Answer, Failed, Finished, Request, StreamEvent, unless_failed
from pasta_lm.engines.response import Response
from pasta_lm.engines.servers.cluster import Cluster, check_server
from pasta_lm.engines.servers.dialects import KEY_ENV, dialect_of, server_urls
from pasta_lm.engines.servers.in_flight import RequestsInFlight, ServedRequest
from pasta_lm.engines.servers.streamed_response import StreamedResponse
from pasta_lm.errors import (
    BrokenAnswerError,
    ContextLengthError,
    MissingExtraError,
    RemoteError,
    RequestError,
    UsageError,
    first_error,
)
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language.parser import Form
from pasta_lm.models.folder import PASTA
from pasta_lm.models.load import last_position, load_without_weights
from pasta_lm.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from pasta_lm.engines.servers.client import Connection, StockServer

SERVERS = "servers"
MAX_RESPONSES = 64
"""Responses of each server that are decoded at once; others wait here."""
Put = Callable[[StreamEvent], None]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The facts of a model whose weights are in servers."""

    vocabulary: Vocabulary
    eos_ids: frozenset[int]  # all ids that end main
    name: str | None = None  # for the trace; None: as the server calls it
    max_position: int | None = None  # the last position that it may be given
    positions: PositionStrategy = PositionStrategy.CONTINUE  # those that it was trained with
    join: Join = Join.RECOMPUTE
    trained_strategy: str = PASTA
    fork_bias: float = 0.0
    kind: Kind = Kind.GENERATED
    device: str = SERVERS
    dtype_name: str = SERVERS  # what they chose when they started

    def join_with(self, positions: PositionStrategy) -> Join:
        """Return the join that it was trained with, as far as it goes with positions."""
        return self.join if positions is self.positions else Join.SHARED


def read_served(source: str | Path) -> ServedModel:
    """Return the facts of the model that servers hold, from its folder or hub id.

    Raises:
        ModelNotFoundError: there are no configuration and tokenizer, as in an adapter or GGUF file.
        ModelError: its ``pasta_config.json`` is broken.
        VocabularyError: that file and its tokenizer disagree.
    """
    pretrained = load_without_weights(source)
    config = pretrained.config
    return ServedModel(
        vocabulary=pretrained.vocabulary,
        eos_ids=pretrained.eos_ids,
        name=pretrained.name,
        max_position=last_position(pretrained.model),
        positions=config.positions if config else PositionStrategy.PREDICT,
        join=config.join if config else Join.SHARED,
        trained_strategy=config.trained_strategy if config else PASTA,
        fork_bias=config.fork_bias if config else 0.0,
    )


class CompletionsEngine:
    """Decode requests on servers of the same model."""

    def __init__(
        self,
        servers: Sequence[StockServer],
        loaded: ServedModel,
        *,
        allow_inexact: bool = False,
        checks: bool = True,
        num_again: int = 2,
    ) -> None:
        """Keep the servers; nothing is sent. A UsageError if there is none.

        Args:
            servers: At least one.
            loaded: Their model.
            allow_inexact: Replace positions and joins that servers cannot compute, and use models
                that were not taught.
            checks: Whether a server must show that it holds the model before it is used.
            num_again: How often ``generate`` decodes a request anew that a failing server ended.
        """
        if not servers:
            raise UsageError("no server is named", hint="for example http://localhost:8000")
        self.servers = tuple(servers)
        self.loaded = loaded
        self.max_responses = MAX_RESPONSES * len(self.servers)
        self._num_again = num_again
        self._allow_inexact = allow_inexact
        self._checks = checks
        self._flight: RequestsInFlight | None = None  # of ``submit``, once it is called

    @property
    def max_prompt_tokens(self) -> int | None:
        """Return the last position of the model and of the servers that said it; None: any."""
        last = [server.context - 1 for server in self.servers if server.context is not None]
        last += [] if self.loaded.max_position is None else [self.loaded.max_position]
        return min(last, default=None)

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def served_names(self) -> Mapping[str, Sequence[str]]:
        """Return by the address of each server the names that it gives its model."""
        return {server.url: server.names for server in self.servers if server.names}

    @property
    def active(self) -> Mapping[int, ServedRequest]:
        """Return the submitted requests that are unfinished, by their numbers."""
        return {} if self._flight is None else self._flight.active

    @property
    def has_work(self) -> bool:
        """Return whether a submitted request is unfinished."""
        return bool(self.active)

    def open(self) -> RequestsInFlight:
        """Connect to the servers for submitted requests, unless that was done.

        Raises:
            RemoteError: no server answers.
            EndpointError: a server refuses every request, or does not say of which kind it is.
            ModelError: a server holds another model.
        """
        if self._flight is None:
            self._flight = RequestsInFlight(self)
        return self._flight

    def submit(self, request: Request) -> int:
        """Begin a request; the first call connects. Errors as those of ``stream``."""
        checked = self.check_request(request)
        return self.open().submit(checked)

    def step(self) -> list[tuple[int, StreamEvent | Failed]]:
        """Wait for events of submitted requests, each with the number of its request."""
        return self._flight.step() if self._flight is not None and self.has_work else []

    def wake(self) -> None:
        """End a step that waits."""
        if self._flight is not None:
            self._flight.wake()

    def cancel(self, number: int) -> list[StreamEvent]:
        """Cancel all completions of a request; unknown and finished ones are ignored."""
        if self._flight is not None:
            self._flight.cancel(number)
        return []

    def close(self) -> None:
        """Cancel all unfinished requests and disconnect."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.close()

    def check(self) -> None:
        """Ask the servers who they are, and check them; errors as those of ``open``."""
        RequestsInFlight(self).close()

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Decode requests together; the error of one ends all unless it can be decoded anew."""
        checked = [self.check_request(request) for request in requests]
        answers: list[dict[int, Answer]] = [{} for _ in requests]  # by sample
        errors: list[list[Exception]] = [[] for _ in requests]
        if not checked:
            return []
        with RequestsInFlight(self) as flight:
            indices = {flight.submit(request): index for index, request in enumerate(checked)}
            for number, event in flight.events():
                index = indices[number]
                if isinstance(event, Finished):
                    answers[index][event.sample] = event.answer
                if not isinstance(event, Failed):
                    continue
                errors[index].append(event.error)
                is_lost = isinstance(event.error, RemoteError)
                if not is_lost or len(errors[index]) > self._num_again:
                    raise errors[index][0]
                indices[flight.submit(checked[index])] = index
        return [[samples[sample] for sample in sorted(samples)] for samples in answers]

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        """Decode one request and yield its events; closing the iterator aborts it.

        Raises:
            RequestError: a server cannot carry it out exactly, or refuses it.
            BrokenAnswerError: a server failed inside the answer.
            PastaError: as ``open``.
        """
        checked = self.check_request(request)
        with RequestsInFlight(self) as flight:
            flight.submit(checked)
            for _, event in flight.events():
                yield unless_failed(event)

    def cluster(self) -> Cluster:
        """Return connections to the servers for an event loop; nothing is sent."""
        connections = [server.connection() for server in self.servers]
        return Cluster(connections, self._check_server, self.max_responses)

    async def _check_server(self, connection: Connection) -> None:
        if self._checks:
            is_taught = not self._allow_inexact and self.loaded.trained_strategy == PASTA
            await check_server(connection, self.loaded.vocabulary, is_taught=is_taught)

    async def decode(
        self, cluster: Cluster, request: Request, samples: dict[int, Response], put: Put
    ) -> None:
        """Decode a request in the running event loop; its first error ends all ``samples``."""
        try:
            async with asyncio.TaskGroup() as group:
                for sample in range(request.params.n):
                    group.create_task(self._decode_sample(cluster, request, sample, samples, put))
        except ExceptionGroup as errors:
            raise first_error(errors) from None

    async def _decode_sample(
        self,
        cluster: Cluster,
        request: Request,
        sample: int,
        samples: dict[int, Response],
        put: Put,
    ) -> None:
        """Decode a sample; if its server is lost before the first token, on another one."""
        for num_begun in count(1):
            try:
                async with cluster.reserved() as connection:
                    response = self._response(request, sample, connection.server.model)
                    samples[sample] = response
                    facts = self.loaded.vocabulary, self.loaded.eos_ids
                    return await StreamedResponse(response, connection, *facts, put).run()
            except RemoteError as exc:
                if isinstance(exc, BrokenAnswerError) or num_begun >= len(self.servers):
                    raise

    def _response(self, request: Request, sample: int, model: str) -> Response:
        loaded, model = self.loaded, self.loaded.name or model
        return Response(
            request,
            sample,
            Entries.of_prompt(request.prompt),  # a server shares the prompt of samples by itself
            loaded.vocabulary,
            limits=request.limits(self.max_prompt_tokens),
            trace=request.new_trace(Kind.GENERATED, engine="completions", model=model),
            eos_ids=loaded.eos_ids,
        )

    def check_request(self, request: Request) -> Request:
        """Return a request as servers carry it out; refuse what they cannot.

        Raises:
            RequestError: see ``stream``.
        """
        last, params = self.max_prompt_tokens, request.params
        if not request.prompt:
            raise RequestError("the prompt is empty", hint="give at least one token")
        if last is not None and len(request.prompt) > last:
            raise ContextLengthError(len(request.prompt), last + 1)
        if request.forced is not None:
            raise RequestError("a stock server decodes its model's answer, not a given one")
        if params.penalises:
            raise RequestError(
                "a stock server's penalties count tag pieces and other threads, ours do not",
                hint="leave out repetition_penalty, presence_penalty and frequency_penalty",
            )
        if params.logprobs is not None:
            problem = "log-probabilities of a stock server are not read"
            raise RequestError(problem, hint="leave it out")
        params = params.resolved(secrets.randbits(31), self.loaded.fork_bias)
        plain, join = PositionStrategy.CONTINUE, Join.SHARED
        if request.forks:  # else it is a single thread: all strategies and joins are the same
            join = Join.RECOMPUTE if request.form is Form.MAIN else Join.SHARED
            if not self._allow_inexact and (request.positions, request.join) != (plain, join):
                raise self._inexact(request, join)
        return replace(request, params=params, positions=plain, join=join, guesser=None)

    def _inexact(self, request: Request, join: Join) -> RequestError:
        trained, plain = self.loaded, PositionStrategy.CONTINUE
        return RequestError(
            f"positions {request.positions.value!r} with join {request.join.value!r} are not "
            "exact on a stock server, which computes plain causal texts",
            hint=f"the model was trained with {trained.positions.value!r} and "
            f"{trained.join.value!r}; --allow-inexact decodes it as {plain.value!r} and "
            f"{join.value!r}",
        )


def connect(addresses: str, *, dialect: str | None = None) -> list[StockServer]:
    """Return the servers at addresses that a comma separates; nothing is sent.

    If the environment variable ``PASTA_ENGINE_KEY`` is set, it is sent to them as their key.

    Raises:
        MissingExtraError: httpx2 is not installed.
        UsageError: an unknown dialect.
    """
    if not find_spec("httpx2"):
        raise MissingExtraError(f"asking {addresses}", "data")
    from pasta_lm.engines.servers.client import StockServer

    key = os.environ.get(KEY_ENV) or None
    kind = None if dialect is None else dialect_of(dialect)
    return [StockServer(url, dialect=kind, api_key=key) for url in server_urls(addresses)]
