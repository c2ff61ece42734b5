"""The engines behind the server, by the same few calls: submit, step, abort.

All calls but ``prepare`` come from the engine's own thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from pasta_lm.engines.request import Failed, Request, SamplingParams, StreamEvent
from pasta_lm.engines.scripted import ScriptedEngine, words
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.thread import ThreadState
from pasta_lm.language.document import Document
from pasta_lm.strategies import pasta, sequential
from pasta_lm.strategies.replay import bounded
from pasta_lm.strategies.requests import STRATEGIES

if TYPE_CHECKING:
    from pasta_lm.engines.response import Response
    from pasta_lm.strategies.model import Pasta

Messages = Sequence[Mapping[str, str]]
Events = Sequence[tuple[int, StreamEvent | Failed]]
"""What happened in a step, each with the number of its request."""


class TokenIds(tuple[int, ...]):
    """A prompt that a client has encoded."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: messages for the chat template, or a text or ids to continue as they stand."""

    content: str | TokenIds | Messages
    strategy: str = pasta.NAME
    positions: str | None = None

    @property
    def continues(self) -> bool:
        """Return whether it is continued as it stands, without the chat template."""
        return isinstance(self.content, str | TokenIds)


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads of one request that decode, and those that wait at a sync or are deferred."""

    num_running: int = 0
    num_waiting: int = 0


class Backend(Protocol):
    """An engine as the server sees it."""

    name: str
    has_logprobs: bool
    """Whether answers have log-probabilities when their request asks for them."""

    @property
    def strategies(self) -> Sequence[str]:
        """Return the strategies by which the model answers."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Return what ``/v1/models`` tells about the model besides."""

    def spell(self, token_id: int) -> bytes:
        """Return a token's bytes; for tags and special tokens, those of their spelling."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of an answer's plain text: its passes if decoded in order."""

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the request for a prompt, its tokens lowered to what the cache can hold.

        Called from any thread, also while the engine decodes.

        Raises:
            PastaError: this can never be served.
        """

    def prepare_replay(
        self, prompt: Prompt, document: Document, max_threads: int | None
    ) -> Request:
        """Return the request that decodes a given answer; called as ``prepare``.

        The prompt's strategy counts for nothing: the answer's tags say how it is decoded.

        Raises:
            PastaError: this can never be served.
        """

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished."""

    def has_room(self, request: Request) -> bool:
        """Return whether a request would run at once."""

    def submit(self, request: Request) -> int:
        """Begin a request and return its number."""

    def step(self) -> Events:
        """Run one step and return its events, each with the number of its request.

        An error that concerns some requests only ends these, with ``Failed``; one that concerns
        all is raised.
        """

    def abort(self, number: int) -> object:
        """Free everything that belongs to a request; unknown numbers are ignored."""

    def threads(self) -> Mapping[int, Threads]:
        """Return the threads of each unfinished request."""

    @property
    def cache_usage(self) -> float:
        """Return the used share of the cache, from 0 to 1."""


def _content(prompt: Prompt) -> str | Messages:
    """Return what a model encodes; ids take the place of what it makes of a word."""
    return "ids" if isinstance(prompt.content, TokenIds) else prompt.content


def _with_ids(model: Pasta, prompt: Prompt, request: Request) -> Request:
    if not isinstance(prompt.content, TokenIds):
        return request
    for piece, token in model.engine.loaded.vocabulary.piece_ids.items():
        if token in prompt.content:
            raise RequestError(
                f"token {token} of the prompt is the tag {piece}, which no prompt may hold",
                hint="encode the prompt without the tags, or send it as a text",
            )
    return replace(request, prompt=prompt.content)


def threads_of(responses: Iterable[Response]) -> Threads:
    """Return the threads of a request's samples by what they do."""
    states = [one.state for response in responses for one in response.interpreter.threads]
    num_alive = sum(state is not ThreadState.ENDED for state in states)
    num_running = sum(state is ThreadState.RUNNING for state in states)
    return Threads(num_running, num_alive - num_running)


class ModelBackend:
    """A model behind the server, whatever decodes its tokens."""

    def __init__(self, model: Pasta, name: str) -> None:
        self.name = name
        self._model = model
        self._vocabulary = model.engine.loaded.vocabulary

    @property
    def strategies(self) -> Sequence[str]:
        """Return the strategies by which the model answers."""
        return self._model.strategies

    def spell(self, token_id: int) -> bytes:
        """Return a token's bytes; for tags and special tokens, those of their spelling."""
        if found := self._vocabulary.token_bytes(token_id):
            return found
        return (self._vocabulary.tokenizer.backend_tokenizer.id_to_token(token_id) or "").encode()

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a plain text."""
        return len(self._vocabulary.encode_text(text))

    def requested(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the model's request for a prompt.

        Raises:
            RequestError: the prompt is empty, or its ids are those of tags.
            UsageError: an unknown strategy.
        """
        request = self._model.request(
            _content(prompt),
            params,
            strategy=prompt.strategy,
            positions=prompt.positions,
            continues=prompt.continues,
        )
        return _with_ids(self._model, prompt, request)


class TorchBackend(ModelBackend):
    """The local engine."""

    has_logprobs = True

    def __init__(self, model: Pasta, name: str) -> None:
        from pasta_lm.engines.local.engine import TorchEngine

        super().__init__(model, name)
        engine: object = model.engine
        assert isinstance(engine, TorchEngine)
        self._engine = engine

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the position strategy of its training, its device and its dtype."""
        loaded = self._engine.loaded
        dtype = loaded.dtype_name
        return {"positions": loaded.positions, "device": loaded.device.type, "dtype": dtype}

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the request for a prompt, its tokens lowered to what the cache can hold."""
        from pasta_lm.engines.local.active_request import check_request

        request = self.requested(prompt, params)
        check_request(request, self._engine.loaded)
        num_prompt, max_tokens = len(request.prompt), request.params.max_tokens
        entries_a_token = (request.max_entries - num_prompt) // max_tokens  # of all samples
        room = (self._engine.pool.num_slots - num_prompt) // entries_a_token
        if room < 1:
            raise RequestError(
                f"the prompt has {num_prompt} tokens, and with {params.n} samples the "
                f"cache of {self._engine.pool.num_slots} has no room for an answer",
                hint="shorten the prompt, or lower n",
            )
        tokens = min(max_tokens, room)
        return replace(request, params=replace(request.params, max_tokens=tokens))

    def prepare_replay(
        self, prompt: Prompt, document: Document, max_threads: int | None
    ) -> Request:
        """Return the request that decodes a given answer, all of whose tokens fit the cache."""
        from pasta_lm.engines.local.active_request import check_request

        request = self._model.replay_request(
            _content(prompt),
            document,
            positions=prompt.positions,
            max_threads=max_threads,
            continues=prompt.continues,
        )
        request = _with_ids(self._model, prompt, request)
        check_request(request, self._engine.loaded)
        if request.max_entries > self._engine.pool.num_slots:
            raise RequestError(
                f"prompt and answer need {request.max_entries} cache entries, and the cache has "
                f"{self._engine.pool.num_slots}",
                hint="replay a shorter answer",
            )
        return request

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished."""
        return self._engine.has_work

    def has_room(self, request: Request) -> bool:
        """Return whether a request would run at once: all that it can need is free."""
        pool = self._engine.pool
        tickets = [active.ticket for active in self._engine.active.values()]
        needs = [ticket.largest_need for ticket in tickets if ticket.run is None]
        needs.append(request.max_entries)
        return not tickets or sum(map(pool.pages_for, needs)) <= pool.num_free_pages

    def submit(self, request: Request) -> int:
        """Begin a request and return its number."""
        return self._engine.submit(request)

    def step(self) -> Events:
        """Run one forward pass; an error frees the requests that it concerns."""
        return self._engine.step()

    def abort(self, number: int) -> object:
        """Free everything that belongs to a request."""
        return self._engine.cancel(number)

    def threads(self) -> Mapping[int, Threads]:
        """Return the threads of each unfinished request."""
        active = self._engine.active.items()
        return {number: threads_of(one.responses) for number, one in active}

    @property
    def cache_usage(self) -> float:
        """Return the used share of the cache."""
        pool = self._engine.pool
        return 1.0 - pool.num_free_pages / max(1, pool.pages_for(pool.num_slots))


class ScriptedBackend:
    """The scripted engine: every request gets the same written answer. For tests and documents."""

    has_logprobs = False
    strategies: Sequence[str] = (pasta.NAME, sequential.NAME)
    facts: Mapping[str, str] = {"device": "none"}

    def __init__(self, engine: ScriptedEngine, name: str = "script", capacity: int = 256) -> None:
        """Serve a script to at most ``capacity`` requests at a time."""
        self.name = name
        self._engine = engine
        self._capacity = capacity
        self._numbers = count()
        self._running: dict[int, Iterator[list[StreamEvent]]] = {}
        self._encodes = Lock()  # words are numbered as they are met

    def spell(self, token_id: int) -> bytes:
        """Return the bytes of a word or a tag."""
        return self._engine.spell(token_id).encode()

    def count_tokens(self, text: str) -> int:
        """Return the number of words, the tokens of a script."""
        return len(words(text))

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the request; the prompt's words are counted and change nothing."""
        if prompt.strategy not in STRATEGIES:
            names = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {prompt.strategy!r}", hint=f"one of {names}")
        content = prompt.content
        ids = content if isinstance(content, TokenIds) else None
        text = "" if isinstance(content, TokenIds) else _text(content)
        if not (ids or text.strip()):
            raise RequestError("the prompt is empty", hint="give it at least one word")
        with self._encodes:
            request = self._engine.request(text, params)
        forks = prompt.strategy != sequential.NAME
        return replace(request, prompt=ids or request.prompt, forks=forks, strategy=prompt.strategy)

    def prepare_replay(
        self, prompt: Prompt, document: Document, max_threads: int | None
    ) -> Request:
        """Return the request that decodes a given answer instead of the script."""
        has_tags = document.blocks or document.num_syncs
        named = replace(prompt, strategy=pasta.NAME if has_tags else sequential.NAME)
        request = self.prepare(named, SamplingParams())
        with self._encodes:
            return bounded(self._engine.replay(request, document), max_threads)

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished."""
        return bool(self._running)

    def has_room(self, request: Request) -> bool:
        """Return whether another request may run."""
        return len(self._running) < self._capacity

    def submit(self, request: Request) -> int:
        """Begin a request and return its number."""
        number = next(self._numbers)
        self._running[number] = self._engine.steps(request)
        return number

    def step(self) -> Events:
        """Let every request take one step."""
        events: list[tuple[int, StreamEvent | Failed]] = []
        for number, steps in list(self._running.items()):
            happened: Sequence[StreamEvent | Failed] | None
            try:
                with self._encodes:  # the first step writes the script as ids
                    happened = next(steps, None)
            except Exception as error:
                happened = [Failed(error)]
            if happened is None:
                del self._running[number]
            events += [(number, event) for event in happened or ()]
        return events

    def abort(self, number: int) -> object:
        """Forget a request."""
        return self._running.pop(number, None)

    def threads(self) -> Mapping[int, Threads]:
        """Return one thread a request: a script does not show its threads from outside."""
        return {number: Threads(1, 0) for number in self._running}

    @property
    def cache_usage(self) -> float:
        """Return the share of requests that may run."""
        return len(self._running) / max(1, self._capacity)


def _text(content: str | Messages) -> str:
    return content if isinstance(content, str) else "\n\n".join(one["content"] for one in content)
