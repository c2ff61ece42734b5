"""A backend over the scripted engine, whose steps tests can hold, break or hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from threading import Event, Lock, Semaphore
from types import MappingProxyType

from pasta_lm.engines.request import Failed, Request, SamplingParams, StreamEvent
from pasta_lm.engines.scripted import ScriptedEngine, words
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.thread import ThreadState
from pasta_lm.language.document import Document
from pasta_lm.parts import declared as parts
from pasta_lm.serve.backends import Events
from pasta_lm.serve.tool_calls import ClientPrompt, TokenIds, ToolTemplate, Turns
from pasta_lm.strategies import PASTA, SEQUENTIAL
from pasta_lm.strategies.requests import STRATEGIES, bounded


class ScriptedBackend:
    can_replay = True
    strategies: Sequence[str] = (PASTA, SEQUENTIAL)
    facts: Mapping[str, str] = {"device": "none"}
    sampling: Mapping[str, float] = MappingProxyType({})
    tools = ToolTemplate()

    def __init__(self, engine: ScriptedEngine, name: str = "script", capacity: int = 256) -> None:
        """Serve a script to at most ``capacity`` requests at a time."""
        self.name = name
        self._engine = engine
        self._capacity = capacity
        self._numbers = count()
        self._running: dict[int, Iterator[list[StreamEvent]]] = {}
        self._encodes = Lock()  # words are numbered as they are met

    def spell(self, token_id: int) -> bytes:
        return self._engine.ids.feed(token_id).encode()

    def count_tokens(self, text: str) -> int:
        return len(words(text))

    def prepare(self, prompt: ClientPrompt, params: SamplingParams) -> Request:
        """Return the request; the prompt's words are counted and change nothing."""
        if prompt.strategy not in (*STRATEGIES, parts.NAME):
            names = ", ".join(STRATEGIES)
            raise UsageError(f"unknown strategy {prompt.strategy!r}", hint=f"one of {names}")
        if params.structured_outputs is not None or params.logprobs is not None:
            message = "a script has no other form and no log-probabilities"
            raise RequestError(message, hint="leave them out")
        content = prompt.content
        ids = content if isinstance(content, TokenIds) else None
        text = "" if isinstance(content, TokenIds) else _text(content)
        if not (ids or text.strip()):
            raise RequestError("the prompt is empty", hint="give it at least one word")
        with self._encodes:
            request = self._engine.request(text, params)
        forks = prompt.strategy != SEQUENTIAL
        return replace(request, prompt=ids or request.prompt, forks=forks, strategy=prompt.strategy)

    def prepare_replay(
        self, prompt: ClientPrompt, document: Document, max_threads: int | None
    ) -> Request:
        has_tags = document.blocks or document.num_syncs
        named = replace(prompt, strategy=PASTA if has_tags else SEQUENTIAL)
        request = self.prepare(named, SamplingParams(max_threads=max_threads))
        with self._encodes:
            return bounded(self._engine.replay(request, document))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        yield

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def has_room(self, request: Request) -> bool:
        return len(self._running) < self._capacity

    def submit(self, request: Request) -> int:
        number = next(self._numbers)
        self._running[number] = self._engine.steps(request)
        return number

    async def step(self) -> Events:
        await asyncio.sleep(0)
        events: list[tuple[int, StreamEvent | Failed]] = []
        for number, steps in list(self._running.items()):
            batch: Sequence[StreamEvent | Failed] | None
            try:
                with self._encodes:  # the first step writes the script as ids
                    batch = next(steps, None)
            except Exception as error:
                batch = [Failed(error)]
            if batch is None:
                del self._running[number]
            events += [(number, event) for event in batch or ()]
        return events

    def wake(self) -> None:
        """Do nothing: a step ends by itself."""

    def abort(self, number: int) -> None:
        self._running.pop(number, None)

    def threads(self) -> Mapping[int, list[ThreadState]]:
        """Return one thread a request: a script does not show its threads from outside."""
        return {number: [ThreadState.RUNNING] for number in self._running}

    @property
    def cache_usage(self) -> float:
        return len(self._running) / max(1, self._capacity)


class HeldBackend(ScriptedBackend):
    """Steps decode when ``may_step`` is set, or as many as are allowed; raises ``error`` once."""

    def __init__(self, script: Document, *, num_steps: int = 0, capacity: int = 256) -> None:
        super().__init__(ScriptedEngine(script), capacity=capacity)
        self.may_step = Event()  # also set from other threads than the server's
        self.error: Exception | None = None
        self._allowed = Semaphore(num_steps)

    def allow(self, num_steps: int) -> None:
        self._allowed.release(num_steps)

    async def step(self) -> Events:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.may_step.is_set() or self._allowed.acquire(blocking=False):
            return await super().step()
        await asyncio.sleep(0.002)
        return []


class HangingBackend(ScriptedBackend):
    """Steps do not come back before ``may_go_on`` is set."""

    def __init__(self, script: Document, *, capacity: int = 256) -> None:
        super().__init__(ScriptedEngine(script), capacity=capacity)
        self.may_go_on = asyncio.Event()

    async def step(self) -> Events:
        await self.may_go_on.wait()
        return await super().step()


class PoisonedEngine(ScriptedEngine):
    """A script that breaks off for one prompt, after a number of good steps."""

    def __init__(self, script: Document, prompt: str, num_good_steps: int) -> None:
        super().__init__(script)
        self.poison = self.request(prompt).prompt
        self.num_good_steps = num_good_steps

    def steps(self, request: Request) -> Iterator[list[StreamEvent]]:
        for number, events in enumerate(super().steps(request)):
            if list(request.prompt) == list(self.poison) and number == self.num_good_steps:
                raise ValueError("a secret detail")
            yield events


def _text(content: str | Turns) -> str:
    return content if isinstance(content, str) else "\n\n".join(turn["content"] for turn in content)
