"""The engine on stock servers: vLLM, SGLang or llama.cpp's, with nothing installed in them.

The interpreter runs here; every thread is a streaming completion there. It is exact for plain
causal texts: positions ``continue`` and, from a sync on, join ``recompute``. A response stays on
one server, where its prefix is cached; responses are spread by load.

The event loop runs in another thread, so that requests go on while the caller does something else,
also where the caller has an event loop itself.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from pasta_lm import errors
from pasta_lm.engines.grammars import Grammars
from pasta_lm.engines.request import Answer, Failed, Finished, Request, StreamEvent, unless_failed
from pasta_lm.engines.response import Response
from pasta_lm.engines.servers.cluster import Cluster, Connection, StockServer, check_server
from pasta_lm.engines.servers.dialects import DIALECTS, KEY_ENV, server_urls
from pasta_lm.engines.servers.streamed_response import StreamedResponse
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.language.parser import Form
from pasta_lm.models.folder import PASTA
from pasta_lm.models.generation import sampling_settings
from pasta_lm.models.load import last_position, load_without_weights
from pasta_lm.models.vocabulary import Vocabulary

MAX_RESPONSES = 64  # responses that a server decodes at once; others wait here
PENALTIES = "repetition_penalty, presence_penalty and frequency_penalty"
T = TypeVar("T")


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
    sampling: Mapping[str, float] = field(default_factory=dict)  # its authors' settings
    kind: Kind = Kind.GENERATED
    device: str = "servers"
    dtype_name: str = "servers"  # what they chose when they started

    def join_with(self, positions: PositionStrategy) -> Join:
        return self.join if positions is self.positions else Join.SHARED


def read_served(source: str | Path) -> ServedModel:
    """Return the facts of the model that servers hold, from its folder or hub id.

    A ``ModelNotFoundError`` if there are no configuration and tokenizer, as in an adapter or GGUF
    file; a ``ModelError`` if its ``pasta_config.json`` is broken or disagrees with the tokenizer.
    """
    pretrained = load_without_weights(source)
    config, sampling = pretrained.config, sampling_settings(pretrained.model)
    sampling.pop("repetition_penalty", None)  # theirs counts tag pieces and other threads
    return ServedModel(
        vocabulary=pretrained.vocabulary, eos_ids=pretrained.eos_ids, name=pretrained.name,
        max_position=last_position(pretrained.model),
        positions=config.positions if config else PositionStrategy.PREDICT,
        join=config.join if config else Join.SHARED,
        trained_strategy=config.trained_strategy if config else PASTA,
        fork_bias=config.fork_bias if config else 0.0, sampling=sampling,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class ServedRequest:
    """An unfinished request, and those of its samples that have begun."""

    request: Request
    samples: dict[int, Response] = field(default_factory=dict)
    task: Future[None] | None = None

    @property
    def responses(self) -> list[Response]:
        return list(self.samples.values())  # a copy: others may begin meanwhile


class CompletionsEngine:
    """Decode requests on servers of the same model."""

    is_remote = True

    def __init__(
        self, servers: Sequence[StockServer], loaded: ServedModel, *, allow_inexact: bool = False,
        checks: bool = True, num_again: int = 2,
    ) -> None:  # fmt: skip
        """Keep the servers of a model; nothing is sent. A UsageError if there is none.

        ``allow_inexact`` replaces positions and joins that servers cannot compute, and uses models
        that were not taught. With ``checks`` a server must show that it holds the model before it
        is used. ``generate`` decodes a request ``num_again`` times anew if a server fails inside.
        """
        if not servers:
            raise errors.UsageError("no server is named", hint="for example http://localhost:8000")
        self.servers = tuple(servers)
        self.loaded = loaded
        self.max_responses = MAX_RESPONSES * len(self.servers)
        self.active: dict[int, ServedRequest] = {}  # the unfinished requests by their numbers
        self._num_again = num_again
        vocabulary, eos_ids = loaded.vocabulary, [*loaded.eos_ids]
        self._grammars = Grammars(vocabulary, vocabulary.num_tokens, eos_ids)
        self._allow_inexact, self._checks = allow_inexact, checks
        self._numbers = count()
        self._events: SimpleQueue[tuple[int, StreamEvent | Failed | None] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None  # the connections', once opened
        self._cluster: Cluster | None = None

    @property
    def max_prompt_tokens(self) -> int | None:
        """Return the last position of the model and of the servers that said it; None: any."""
        last = [server.context - 1 for server in self.servers if server.context is not None]
        last += [] if self.loaded.max_position is None else [self.loaded.max_position]
        return min(last, default=None)

    @property
    def served_names(self) -> Mapping[str, Sequence[str]]:
        return {server.url: server.names for server in self.servers if server.names}

    @property
    def has_work(self) -> bool:
        return bool(self.active)

    def open(self) -> None:
        """Connect to the servers and check them, once; errors are those of ``Servers.holding``."""
        if self._loop is not None:
            return
        connections = [Connection(server) for server in self.servers]
        self._cluster = Cluster(connections, self._check_server, self.max_responses)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="pasta-servers", daemon=True)
        self._thread.start()
        try:
            self._start(self._cluster.open()).result()
        except BaseException:
            self.close()
            raise

    async def _check_server(self, connection: Connection) -> None:
        if self._checks:
            is_taught = not self._allow_inexact and self.loaded.trained_strategy == PASTA
            await check_server(connection, self.loaded.vocabulary, is_taught=is_taught)

    def close(self) -> None:
        """Give up all unfinished requests, wait until they have ended, and disconnect."""
        if (loop := self._loop) is not None:
            self._start(self._end(loop)).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()
            self._loop = None
            self.active.clear()
            self.wake()

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        this = {asyncio.current_task()}
        for task in (tasks := asyncio.all_tasks() - this):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert self._cluster is not None
        await self._cluster.close()
        await loop.shutdown_asyncgens()
        # Generators that were left close in other tasks.
        await asyncio.gather(*(asyncio.all_tasks() - this), return_exceptions=True)

    def _start(self, work: Coroutine[object, object, T]) -> Future[T]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def submit(self, request: Request) -> int:
        """Begin a request; the first one connects. Errors as those of ``stream``."""
        active = ServedRequest(self.check_request(request))
        self.open()
        self.active[number := next(self._numbers)] = active
        active.task = self._start(self._decode(number, active))
        return number

    def cancel(self, number: int) -> list[StreamEvent]:
        if (active := self.active.pop(number, None)) and active.task:
            active.task.cancel()
        return []

    def step(self) -> list[tuple[int, StreamEvent | Failed]]:
        """Wait for events or the end of a request, and return the events since the last call."""
        events: list[tuple[int, StreamEvent | Failed]] = []
        arrived = [self._events.get()] if self.active else []
        with suppress(Empty):
            while arrived:
                arrived.append(self._events.get_nowait())
        for number, event in filter(None, arrived):
            if event is None:
                self.active.pop(number, None)
            elif number in self.active:  # else it was cancelled
                events.append((number, event))
        return events

    def wake(self) -> None:
        self._events.put(None)

    def _apart(self) -> closing[CompletionsEngine]:
        inexact, checks = self._allow_inexact, self._checks
        engine = CompletionsEngine(self.servers, self.loaded, allow_inexact=inexact, checks=checks)
        engine._grammars = self._grammars  # what was compiled is kept
        return closing(engine)

    def check(self) -> None:
        """Ask the servers who they are, and check them; errors as those of ``open``."""
        with self._apart() as engine:
            engine.open()

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Decode requests together; the error of one ends all unless it can be decoded anew."""
        checked = [self.check_request(request) for request in requests]
        answers: list[dict[int, Answer]] = [{} for _ in requests]  # by sample
        failures: list[list[Exception]] = [[] for _ in requests]
        with self._apart() as engine:
            indices = {engine.submit(request): index for index, request in enumerate(checked)}
            for number, event in engine.events():
                index = indices[number]
                if isinstance(event, Finished):
                    answers[index][event.sample] = event.answer
                if not isinstance(event, Failed):
                    continue
                failures[index].append(event.error)
                is_lost = isinstance(event.error, errors.RemoteError)
                if not is_lost or len(failures[index]) > self._num_again:
                    raise failures[index][0]
                indices[engine.submit(checked[index])] = index
        return [[samples[sample] for sample in sorted(samples)] for samples in answers]

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        """Decode one request and yield its events; closing the iterator aborts it.

        A RequestError if servers cannot carry it out exactly or refuse it, a BrokenAnswerError if
        one fails inside the answer; others as those of ``open``.
        """
        with self._apart() as engine:
            engine.submit(request)
            for _, event in engine.events():
                yield unless_failed(event)

    def events(self) -> Iterator[tuple[int, StreamEvent | Failed]]:
        while self.active:
            yield from self.step()

    async def _decode(self, number: int, active: ServedRequest) -> None:
        """Decode all samples of a request; the first error ends the others."""
        try:
            async with asyncio.TaskGroup() as group:
                for sample in range(active.request.params.n):
                    group.create_task(self._decode_sample(number, active, sample))
        except ExceptionGroup as failures:  # raised where the events are read
            error = errors.first_error(failures)
            assert isinstance(error, Exception)
            self._events.put((number, Failed(error)))
        self._events.put((number, None))

    async def _decode_sample(self, number: int, active: ServedRequest, sample: int) -> None:
        """Decode a sample; if its server is lost before the first token, on another one."""
        assert self._cluster is not None
        request, loaded = active.request, self.loaded
        for num_begun in count(1):
            try:
                async with self._cluster.reserved() as connection:
                    model = loaded.name or connection.server.model
                    entries = Entries.of_prompt(request.prompt)  # servers share that of samples
                    response = active.samples[sample] = Response(
                        request, sample, entries, loaded.vocabulary,
                        limits=request.limits(self.max_prompt_tokens),
                        trace=request.new_trace(Kind.GENERATED, engine="completions", model=model),
                        eos_ids=loaded.eos_ids, matcher_of=self._grammars.matcher,
                    )  # fmt: skip
                    put = lambda event: self._events.put((number, event))  # noqa: E731
                    return await StreamedResponse(response, connection, loaded, put).run()
            except errors.RemoteError as exc:
                if isinstance(exc, errors.BrokenAnswerError) or num_begun >= len(self.servers):
                    raise

    def check_request(self, request: Request) -> Request:
        """Return a request as servers carry it out; a RequestError if they cannot."""
        last, params = self.max_prompt_tokens, request.params
        if last is not None and len(request.prompt) > last:
            raise errors.ContextLengthError(len(request.prompt), last + 1)
        request.check(last, self.loaded.vocabulary.num_tokens)
        for problem, names, is_set in (
            ("a stock server decodes its model's answer, not a given one", "the answer",
             request.forced is not None),
            ("a stock server's penalties count tag pieces and other threads, ours do not",
             PENALTIES, params.penalises),
            ("a stock server ends no thought after a number of tokens", "max_thinking_tokens",
             params.max_thinking_tokens is not None),
            ("log-probabilities of a stock server are not read", "them",
             params.logprobs is not None),
            ("a stock server takes no bias beyond 100 or -100", "logit_bias, or make it smaller",
             any(abs(bias) > 100 for bias in params.logit_bias.values())),
        ):  # fmt: skip
            if is_set:
                raise errors.RequestError(problem, hint=f"leave out {names}")
        for name, form in request.structures:
            self._grammars.matcher(form, name)
        params = params.resolved(secrets.randbits(31), self.loaded.fork_bias)
        plain, join = PositionStrategy.CONTINUE, Join.SHARED
        if request.forks:  # else it is a single thread: all strategies and joins are the same
            join = Join.RECOMPUTE if request.form is Form.MAIN else Join.SHARED
            if not self._allow_inexact and (request.positions, request.join) != (plain, join):
                pair = f"positions {request.positions.value!r} with join {request.join.value!r}"
                raise errors.RequestError(
                    f"{pair} are not exact on a stock server, which computes plain causal texts",
                    hint=f"the model was trained with {self.loaded.positions.value!r} and "
                    f"{self.loaded.join.value!r}; --allow-inexact (servers.allow_inexact in a "
                    f"recipe) decodes it as {plain.value!r} and {join.value!r}",
                )
        return replace(request, params=params, positions=plain, join=join, guesser=None)


def connect(addresses: str, *, dialect: str | None = None) -> list[StockServer]:
    if not find_spec("httpx2"):
        raise errors.MissingExtraError(f"asking {addresses}", "serve")
    key = os.environ.get(KEY_ENV) or None  # they may want one
    if dialect not in (None, *DIALECTS):
        hint = f"one of {', '.join(DIALECTS)}"
        raise errors.UsageError(f"unknown dialect {dialect!r}", hint=hint)
    kind = None if dialect is None else DIALECTS[dialect]
    return [StockServer(url, dialect=kind, api_key=key) for url in server_urls(addresses)]
