"""The engines behind the server, by one interface; the local one.

All calls come from the server's event loop; only ``prepare`` and ``prepare_replay`` come from
other threads, also during a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

from pasta_lm.engines.request import Failed, Request, SamplingParams, StreamEvent
from pasta_lm.errors import RequestError
from pasta_lm.interpreter.thread import ThreadState
from pasta_lm.language.document import Document
from pasta_lm.strategies import pasta

if TYPE_CHECKING:
    from pasta_lm.engines.local.engine import TorchEngine
    from pasta_lm.engines.response import Response
    from pasta_lm.strategies.model import Pasta

Messages = Sequence[Mapping[str, str]]
Events = Sequence[tuple[int, StreamEvent | Failed]]
"""The events of a step, each with the number of its request."""


class TokenIds(tuple[int, ...]):
    """A prompt that a client has encoded."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages for the chat template, or a text or ids to continue as they stand."""

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
    can_replay: bool
    """Whether it decodes given answers."""

    @property
    def strategies(self) -> Sequence[str]:
        """Return the strategies by which the model answers."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Return further facts of the model for ``/v1/models``."""

    def spell(self, token_id: int) -> bytes:
        """Return a token's bytes; for tags and special tokens, those of their spelling."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of an answer's plain text."""

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the request for a prompt, its tokens lowered to what the cache can hold.

        Raises:
            PastaError: this can never be served.
        """

    def prepare_replay(
        self, prompt: Prompt, document: Document, max_threads: int | None
    ) -> Request:
        """Return the request that decodes a given answer; the prompt's strategy is ignored.

        Raises:
            PastaError: this can never be served.
        """

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Return a context for all that follows; the engine works while it lasts."""

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished."""

    def has_room(self, request: Request) -> bool:
        """Return whether a request would run at once."""

    def submit(self, request: Request) -> int:
        """Begin a request and return its number."""

    async def step(self) -> Events:
        """Take one step; an error that concerns some requests only is an event ``Failed``."""

    def wake(self) -> None:
        """End a step that waits for tokens, because requests came or went."""

    def abort(self, number: int) -> None:
        """Free everything that belongs to a request; unknown numbers are ignored."""

    def threads(self) -> Mapping[int, Threads]:
        """Return the threads of each unfinished request."""

    @property
    def cache_usage(self) -> float:
        """Return the used share of the cache, from 0 to 1."""


class ModelBackend:
    """The calls that need a model's tokenizer and training only."""

    def __init__(self, model: Pasta, name: str) -> None:
        self.name = name
        self._model = model
        self._loaded = model.engine.loaded

    @property
    def strategies(self) -> Sequence[str]:
        """Return the strategies by which the model answers."""
        return self._model.strategies

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the position strategy of its training, its device and its dtype."""
        loaded = self._loaded
        device = str(loaded.device).partition(":")[0]
        return {"positions": loaded.positions, "device": device, "dtype": loaded.dtype_name}

    def spell(self, token_id: int) -> bytes:
        """Return a token's bytes; for tags and special tokens, those of their spelling."""
        vocabulary = self._loaded.vocabulary
        if spelling := vocabulary.token_bytes(token_id):
            return spelling
        return (vocabulary.tokenizer.backend_tokenizer.id_to_token(token_id) or "").encode()

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a plain text."""
        return len(self._loaded.vocabulary.encode_text(text))

    def request(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the model's request for a prompt.

        Raises:
            RequestError: the prompt is empty, or its ids are those of tags.
            UsageError: an unknown strategy.
        """
        request = self._model.request(
            self._content(prompt),
            params,
            strategy=prompt.strategy,
            positions=prompt.positions,
            continues=prompt.continues,
        )
        return self._with_ids(prompt, request)

    def _content(self, prompt: Prompt) -> str | Messages:
        """Return the text to encode; the ids of a client take the place of a word's."""
        return "ids" if isinstance(prompt.content, TokenIds) else prompt.content

    def _with_ids(self, prompt: Prompt, request: Request) -> Request:
        if not isinstance(prompt.content, TokenIds):
            return request
        for piece, token in self._loaded.vocabulary.piece_ids.items():
            if token in prompt.content:
                raise RequestError(
                    f"token {token} of the prompt is the tag {piece}, which no prompt may hold",
                    hint="encode the prompt without the tags, or send it as a text",
                )
        return replace(request, prompt=prompt.content)


class LocalBackend(ModelBackend):
    """The local engine; its steps run in a thread of their own."""

    has_logprobs = can_replay = True

    def __init__(self, model: Pasta, name: str) -> None:
        super().__init__(model, name)
        self._engine = cast("TorchEngine", model.engine)
        self._executor: ThreadPoolExecutor | None = None

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Request:
        """Return the request for a prompt, its tokens lowered to what the cache can hold."""
        request = self._checked(self.request(prompt, params))
        num_prompt, max_tokens = len(request.prompt), request.params.max_tokens
        entries_a_token = (request.max_entries - num_prompt) // max_tokens  # of all samples
        num_slots = self._engine.pool.num_slots
        room = (num_slots - num_prompt) // entries_a_token
        if room < 1:
            raise RequestError(
                f"the prompt has {num_prompt} tokens, and with {params.n} samples the "
                f"cache of {num_slots} has no room for an answer",
                hint="shorten the prompt, or lower n",
            )
        return replace(request, params=replace(request.params, max_tokens=min(max_tokens, room)))

    def prepare_replay(
        self, prompt: Prompt, document: Document, max_threads: int | None
    ) -> Request:
        """Return the request that decodes a given answer, all of whose tokens fit the cache."""
        request = self._model.replay_request(
            self._content(prompt),
            document,
            positions=prompt.positions,
            max_threads=max_threads,
            continues=prompt.continues,
        )
        request = self._checked(self._with_ids(prompt, request))
        if request.max_entries > self._engine.pool.num_slots:
            raise RequestError(
                f"prompt and answer need {request.max_entries} cache entries, and the cache has "
                f"{self._engine.pool.num_slots}",
                hint="replay a shorter answer",
            )
        return request

    def _checked(self, request: Request) -> Request:
        from pasta_lm.engines.local.planning import check_request

        check_request(request, self._engine.loaded)
        return request

    @property
    def facts(self) -> Mapping[str, str]:
        """Return the facts of its training and place, and its size."""
        size = self._engine.loaded.model.num_parameters() / 1e6
        return {**super().facts, "parameters": f"{size:,.0f}M" if size >= 1 else f"{size:.2g}M"}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Have a thread for steps; one that hangs is left alone."""
        self._executor = ThreadPoolExecutor(1, "pasta-engine")
        yield
        self._executor.shutdown(wait=False)

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

    async def step(self) -> Events:
        """Run one forward pass; an error frees the requests that it concerns."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._engine.step)

    def wake(self) -> None:
        """Do nothing: a step ends by itself."""

    def abort(self, number: int) -> None:
        """Free everything that belongs to a request."""
        self._engine.cancel(number)

    def threads(self) -> Mapping[int, Threads]:
        """Return the threads of each unfinished request."""
        active = self._engine.active.items()
        return {number: count_threads(request.responses) for number, request in active}

    @property
    def cache_usage(self) -> float:
        """Return the used share of the cache."""
        pool = self._engine.pool
        return 1.0 - pool.num_free_pages / max(1, pool.pages_for(pool.num_slots))


def count_threads(responses: Iterable[Response]) -> Threads:
    """Return the numbers of threads of a request's samples."""
    states = [thread.state for response in responses for thread in response.interpreter.threads]
    num_alive = sum(state is not ThreadState.ENDED for state in states)
    num_running = sum(state is ThreadState.RUNNING for state in states)
    return Threads(num_running, num_alive - num_running)
