"""The engines behind the server: the local one, and stock servers.

All calls come from the server's event loop; only ``prepare`` and ``prepare_replay`` come from
other threads, also during a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from pasta_lm.engines.request import Answer, Failed, Request, SamplingParams, StreamEvent
from pasta_lm.engines.schemas import Schema
from pasta_lm.errors import ContextLengthError, EndpointError, InputError, RemoteError, RequestError
from pasta_lm.interpreter.thread import ThreadState
from pasta_lm.language.document import Document
from pasta_lm.models.names import BUILTIN_QUALITY, BUILTINS
from pasta_lm.models.thinking import kwargs_at_once
from pasta_lm.parts import declared as parts
from pasta_lm.serve.errors import bad_request, unavailable
from pasta_lm.serve.tool_calls import ClientPrompt, TokenIds, Turns, as_text, tool_template
from pasta_lm.strategies import PASTA, Prompt
from pasta_lm.strategies.requests import check_prompt

if TYPE_CHECKING:
    from pasta_lm.engines.local.engine import TorchEngine
    from pasta_lm.engines.servers.completions import CompletionsEngine
    from pasta_lm.strategies.model import Pasta

Events = Sequence[tuple[int, StreamEvent | Failed]]
"""The events of a step, each with the number of its request."""

PREFIX_CHARACTERS = (8, 32)  # a token of the context; prefixes of this length are encoded first
MAX_TEMPLATE_TOKENS = 256


class ModelBackend:
    """The calls that are the same for every engine; its steps run in another thread."""

    _engine: TorchEngine | CompletionsEngine

    def __init__(self, model: Pasta, name: str) -> None:
        self.name, self.strategies = name, model.strategies
        self.sampling = model.engine.loaded.sampling
        self._model, self._loaded = model, model.engine.loaded
        self._engine = cast("TorchEngine | CompletionsEngine", model.engine)
        self._executor: ThreadPoolExecutor | None = None
        vocabulary = self._loaded.vocabulary
        token_id = vocabulary.tokenizer.backend_tokenizer.token_to_id
        self.tools = tool_template(str(vocabulary.tokenizer.chat_template), token_id)
        self.facts: dict[str, str] = {  # for ``/v1/models``
            "positions": self._loaded.positions,
            "device": str(self._loaded.device).partition(":")[0],
            "dtype": self._loaded.dtype_name,
        }

    def spell(self, token_id: int) -> bytes:
        """Return a token's bytes; for tags and special tokens, those of their spelling."""
        vocabulary = self._loaded.vocabulary
        if spelling := vocabulary.token_bytes(token_id):
            return spelling
        return (vocabulary.tokenizer.backend_tokenizer.id_to_token(token_id) or "").encode()

    def count_tokens(self, text: str) -> int:
        return len(self._loaded.vocabulary.encode_text(text))

    def filled(self, answer: Answer, schema: Schema, document: str) -> parts.PartsAnswer:
        return parts.filled(answer, schema, document, self._loaded.vocabulary)

    def prepare(self, prompt: ClientPrompt, params: SamplingParams) -> Request:
        """Return the request for a prompt; a PastaError if this can never be served."""
        if prompt.schema is not None:
            return self._request(prompt, partial(self._fill_request, prompt, params))
        if prompt.strategy not in (*self.strategies, PASTA):  # the default may fall back
            hint = f"one of {', '.join(self.strategies)}"
            raise RequestError(f"strategy {prompt.strategy!r} is not offered", hint=hint)
        make = partial(
            self._model.request, params=params, strategy=prompt.strategy,
            chat_template_kwargs=prompt.chat_template_kwargs,
        )  # fmt: skip
        return self._request(prompt, make)

    def _fill_request(
        self, prompt: ClientPrompt, params: SamplingParams, content: Prompt, *, continues: bool,
        positions: str | None,
    ) -> Request:  # fmt: skip
        """Return the request of parts, which have no positions."""
        check_prompt(content)
        if continues and not isinstance(content, str):
            raise RequestError("parts continue no message", hint="end the messages with a question")
        kwargs = kwargs_at_once(prompt.chat_template_kwargs, "parts")
        fill = partial(parts.fill_request, content, prompt.schema or {}, self._loaded.vocabulary)
        return fill(params, after=prompt.after, chat_template_kwargs=kwargs)

    def _request(self, prompt: ClientPrompt, make: Callable[..., Request]) -> Request:
        content, positions, shows = prompt.content, prompt.positions, self.tools.shows
        self._check_length(content)
        if isinstance(content, str):
            return make(content, positions=positions, continues=True)
        if not isinstance(content, TokenIds):
            if shows and prompt.tools:
                kwargs = {**(prompt.chat_template_kwargs or {}), "tools": prompt.tools}
                make = partial(make, chat_template_kwargs=kwargs)
            turns = content if shows else [*map(as_text, content)]
            return make(turns, positions=positions, continues=prompt.continues)
        for piece, token in self._loaded.vocabulary.piece_ids.items():
            if token in content:
                reason = f"token {token} of the prompt is the tag {piece}, which no prompt may hold"
                hint = "encode the prompt without the tags, or send it as a text"
                raise RequestError(reason, hint=hint)
        request = make("ids", positions=positions, continues=True)  # a word instead of them
        return replace(request, prompt=content)

    def _check_length(self, content: str | TokenIds | Turns) -> None:
        """Refuse much too long a prompt by its beginning: to encode all of it takes seconds."""
        if (last := self._loaded.max_position) is None:
            return
        if isinstance(content, TokenIds):
            if len(content) > last + 1:
                raise ContextLengthError(len(content), last + 1)
            return
        turns = [{"content": content}] if isinstance(content, str) else content
        text = "\n".join(turn.get("reasoning_content", "") + turn["content"] for turn in turns)
        for size in (last * characters for characters in PREFIX_CHARACTERS):
            if len(text) <= size:
                return
            prefix = text[:size]
            prompt = prefix if isinstance(content, str) else [{"role": "user", "content": prefix}]
            num = len(self._loaded.vocabulary.encode_prompt(prompt)) - MAX_TEMPLATE_TOKENS
            if num > last + 1:
                raise ContextLengthError(num, last + 1, is_partial=True)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        self._executor = ThreadPoolExecutor(1, "pasta-engine")
        yield
        self._executor.shutdown(wait=False)  # a step that hangs is left alone

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    def submit(self, request: Request) -> int:
        return self._engine.submit(request)

    async def step(self) -> Events:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._engine.step)

    def wake(self) -> None:
        """End a wait for events; a step of the local engine ends by itself."""

    def abort(self, number: int) -> None:
        self._engine.cancel(number)

    def threads(self) -> Mapping[int, list[ThreadState]]:
        return {
            number: [
                thread.state
                for response in request.responses
                for thread in response.interpreter.threads
                if thread.state is not ThreadState.ENDED
            ]
            for number, request in self._engine.active.items()
        }


class LocalBackend(ModelBackend):
    """The local engine."""

    can_replay = True
    _engine: TorchEngine

    def __init__(self, model: Pasta, name: str) -> None:
        super().__init__(model, name)
        size = self._engine.loaded.num_parameters / 1e6
        self.facts["parameters"] = f"{size:,.0f}M" if size >= 1 else f"{size:.2g}M"
        if self._loaded.name in BUILTINS:
            self.facts["quality"] = BUILTIN_QUALITY

    def prepare(self, prompt: ClientPrompt, params: SamplingParams) -> Request:
        """Lower the tokens of the request to what the cache can hold."""
        request = super().prepare(prompt, params)
        num_prompt, max_tokens = len(request.prompt), request.params.max_tokens
        num_fixed = num_prompt + request.num_given
        entries_a_token = (request.max_entries - num_fixed) // max_tokens  # all samples together
        num_slots = self._engine.pool.num_slots
        room = (num_slots - num_fixed) // entries_a_token
        if room < 1:
            full = f"with {params.n} samples the cache of {num_slots} has no room for an answer"
            reason = f"the prompt has {num_prompt} tokens, and {full}"
            raise RequestError(reason, hint="shorten the prompt, or lower n")
        return replace(request, params=replace(request.params, max_tokens=min(max_tokens, room)))

    def prepare_replay(
        self, prompt: ClientPrompt, document: Document, max_threads: int | None
    ) -> Request:
        """Return the request that decodes a given answer, all of whose tokens fit the cache."""
        replay = self._model.replay_request
        request = self._request(prompt, partial(replay, document=document, max_threads=max_threads))
        if request.max_entries > self._engine.pool.num_slots:
            needed = f"prompt and answer need {request.max_entries} cache entries"
            reason = f"{needed}, and the cache has {self._engine.pool.num_slots}"
            raise RequestError(reason, hint="replay a shorter answer")
        return request

    def _request(self, prompt: ClientPrompt, make: Callable[..., Request]) -> Request:
        from pasta_lm.engines.local.planning import check_request

        request = super()._request(prompt, make)
        check_request(request, self._engine.loaded)
        return request

    def has_room(self, request: Request) -> bool:
        return self._engine.scheduler.has_room(len(request.prompt), request.max_entries)

    @property
    def cache_usage(self) -> float:
        pool = self._engine.pool
        return 1.0 - pool.num_free_pages / max(1, pool.pages_for(pool.num_slots))


class ServedBackend(ModelBackend):
    """A model that stock servers hold."""

    can_replay = False
    _engine: CompletionsEngine

    def __init__(self, model: Pasta, name: str) -> None:
        """Refuse a model trained for what servers cannot compute, before any request."""
        super().__init__(model, name)
        if model.has_tag_pieces:
            self._engine.check_request(model.request("any"))

    def prepare(self, prompt: ClientPrompt, params: SamplingParams) -> Request:
        """Return the request for a prompt, if servers can decode it exactly."""
        return self._engine.check_request(super().prepare(prompt, params))

    def prepare_replay(self, *_: object) -> Request:
        """Raise a ``RequestError``: servers choose every token themselves."""
        hint = "serve the model with the local engine to replay answers"
        raise RequestError("stock servers decode no given answer", hint=hint)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with super().opened():
            await asyncio.to_thread(self._engine.open)
            yield
            await asyncio.to_thread(self._engine.close)  # also ends a step that waits

    @property
    def _num_running(self) -> int:
        return sum(active.request.params.n for active in list(self._engine.active.values()))

    def has_room(self, request: Request) -> bool:
        num_running = self._num_running
        return not num_running or num_running + request.params.n <= self._engine.max_responses

    async def step(self) -> Events:
        """Wait for events of servers, whose errors are made fit for clients."""
        return [(number, _for_clients(event)) for number, event in await super().step()]

    def wake(self) -> None:
        self._engine.wake()

    @property
    def cache_usage(self) -> float:
        """Return the used share of the responses that may run; the caches are not seen."""
        return min(1.0, self._num_running / self._engine.max_responses)


Backend = LocalBackend | ServedBackend


def _for_clients(event: StreamEvent | Failed) -> StreamEvent | Failed:
    """Return an event whose error names no server behind this one; the log has its cause."""
    if not isinstance(event, Failed):
        return event
    error = event.error
    if isinstance(error, RemoteError):
        public = unavailable("a server behind this one failed", "backend_lost")
    elif isinstance(error, InputError) and not isinstance(error, EndpointError):
        public = bad_request("a server behind this one refuses it", code="refused")
    else:
        return event
    public.__cause__ = error
    return Failed(public)
