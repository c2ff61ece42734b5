"""Faults over the local engine: clients that go away at every stage, and two kinds of failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pasta_lm.engines.local.engine import TorchEngine
from pasta_lm.engines.local.planning import ActiveRequest
from pasta_lm.engines.request import Request
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.thread import ThreadState
from pasta_lm.serve import Bounds, ServeRecipe
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import Events, LocalBackend
from pasta_lm.strategies.model import Pasta
from tests.architectures import loaded
from tests.serve.conftest import client_of, is_idle, post, scenario, settle, streamed
from tests.serve.load import CHAT_PATH, chat

Until = Callable[[Callable[[], bool]], None]
SAMPLED = {"max_tokens": 40, "temperature": 1.0, "seed": 5}


def model(join: Join = Join.SHARED, **settings: Any) -> Pasta:
    taught = loaded("llama")
    if join is Join.RECOMPUTE:
        taught = replace(taught, join=join, positions=PositionStrategy.CONTINUE)
    return Pasta(TorchEngine(taught, **{"pool_tokens": 4096, "captures": False, **settings}))


def assert_no_page_is_left(own: Pasta) -> None:
    pool = own.engine.pool
    assert not own.engine.has_work
    assert pool.num_free_pages == pool.num_pages


class Stepped(LocalBackend):
    """The local engine, a step at a time."""

    def __init__(self, own: Pasta) -> None:
        super().__init__(own, "tiny")
        self.own = own
        self.may_step = threading.Semaphore(0)
        self.num_steps = 0

    async def step(self) -> Events:
        if not self.may_step.acquire(blocking=False):
            await asyncio.sleep(0.002)
            return []
        events = await super().step()
        self.num_steps += 1
        return events

    async def take_step(self) -> None:
        num_before = self.num_steps
        self.may_step.release()
        await settle(lambda: self.num_steps > num_before)

    @property
    def active(self) -> list[ActiveRequest]:
        return list(self.own.engine.active.values())

    def num_in(self, state: ThreadState) -> int:
        responses = [response for one in self.active for response in one.responses]
        threads = [thread for one in responses for thread in one.interpreter.threads]
        return sum(thread.state is state for thread in threads)


STAGES: dict[str, tuple[dict[str, Any], Callable[[Stepped], bool]]] = {
    "before its first step": ({}, lambda _: True),
    "while threads decode": ({}, lambda backend: backend.num_in(ThreadState.RUNNING) > 1),
    "with deferred threads": (
        {"pasta": {"max_threads": 1}},
        lambda backend: backend.num_in(ThreadState.DEFERRED) > 0,
    ),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("changes", [{}, {"stream": True}, {"stream": True, "n": 3}], ids=str)
@scenario
async def test_a_lost_client_frees_its_pages_at_once(stage: str, changes: dict[str, Any]) -> None:
    asked, has_come = STAGES[stage]
    body = {**chat("hello"), **SAMPLED, "max_tokens": 200, **asked, **changes}

    backend = Stepped(model(max_batch_tokens=16))
    app = create_app(backend)
    async with client_of(app) as client:
        gone = asyncio.ensure_future(client.post(CHAT_PATH, json=body))
        await settle(lambda: backend.active)
        while not has_come(backend):
            await backend.take_step()
        num_steps = backend.num_steps
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await settle(lambda: is_idle(app))
        assert_no_page_is_left(backend.own)
        assert backend.num_steps == num_steps


@scenario
async def test_a_client_that_goes_away_in_the_queue_never_runs() -> None:
    backend = Stepped(model(pool_tokens=256))
    app = create_app(backend)
    load = app.state.service.engine
    async with client_of(app) as client:
        body = {**chat("hello"), **SAMPLED, "max_tokens": 150}
        first, queued = (asyncio.ensure_future(client.post(CHAT_PATH, json=body)) for _ in "ab")
        await settle(
            lambda: load.load["num_requests_running"] == load.load["num_requests_waiting"] == 1
        )
        queued.cancel()
        await settle(lambda: load.load["num_requests_waiting"] == 0)
        assert len(backend.active) == 1
        backend.may_step.release(1000)
        assert (await first).status_code == 200
        await settle(lambda: is_idle(app))
        assert_no_page_is_left(backend.own)


def test_a_response_has_no_more_threads_than_the_limit() -> None:
    body = {**chat("hello"), **SAMPLED, "n": 4, "max_tokens": 80}
    most = {}
    for blocks in (1, 64):
        app = create_app(LocalBackend(model(), "tiny"), ServeRecipe(limits=Bounds(blocks=blocks)))
        choices = post(CHAT_PATH, body, app=app).json()["pasta"]["choices"]
        most[blocks] = max(len(choice["threads"]) for choice in choices)
    assert most[1] == 2
    assert most[64] > 2


class BrokenModelError(Exception):
    """What the tests throw inside the engine."""


BAD = {**chat("poison"), **SAMPLED}


class Poisoned(LocalBackend):
    """The local engine, which fails to plan a pass for one prompt."""

    def submit(self, request: Request) -> int:
        number, engine = super().submit(request), self._model.engine
        if list(request.prompt) == list(self._model.request(BAD["messages"]).prompt):
            engine.active[number].responses[-1].feed = self.fail  # type: ignore[method-assign]
        return number

    def fail(self, *_: object, **__: object) -> None:
        raise BrokenModelError("a secret detail")


@pytest.mark.parametrize("join", list(Join))
@scenario
async def test_a_failure_in_a_step_ends_its_response_and_changes_no_other(join: Join) -> None:
    others = [{**chat(f"other {number}"), **SAMPLED, "seed": number} for number in range(3)]

    alone = model(join)
    app = create_app(LocalBackend(alone, "tiny"))
    async with client_of(app) as client:
        replies = [await client.post(CHAT_PATH, json=body) for body in others]
        expected = [one.json()["choices"][0]["message"]["content"] for one in replies]
        figures = [one.json()["pasta"]["choices"][0]["threads"] for one in replies]
        assert any(len(threads) > 1 for threads in figures)
    own = model(join)
    app = create_app(Poisoned(own, "tiny"))
    async with client_of(app) as client:
        bodies = [BAD, others[0], {**BAD, "stream": True}, *others[1:]]
        replies = await asyncio.gather(*(client.post(CHAT_PATH, json=one) for one in bodies))
        whole, stream = replies.pop(0), replies.pop(1)
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, "engine_error")
        assert streamed(stream)[-1]["error"]["code"] == "engine_error"
        assert "secret" not in whole.text + stream.text
        texts = [one.json()["choices"][0]["message"]["content"] for one in replies]
        assert texts == expected
        assert (await client.get("/health")).status_code == 200
        await settle(lambda: is_idle(app))
        assert_no_page_is_left(own)
