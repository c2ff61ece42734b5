"""Clients that go away, engines that fail, queues that are full: nothing leaks, nobody waits."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from pasta_lm.engines.request import Request, StreamEvent
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import Events, ScriptedBackend
from pasta_lm.serve.engine_loop import MAX_FAILED_STEPS
from pasta_lm.serve.event_stream import EventStream
from pasta_lm.serve.guard import JsonLines
from pasta_lm.serve.response_stream import ResponseStream
from pasta_lm.serve.settings import Queue, ServeRecipe
from tests.serve.conftest import CHAT, DOCUMENT, TEXT, client_of, run, scripted, streamed, text_of

PATH = "/v1/chat/completions"
STREAM = {**CHAT, "stream": True}


class Held(ScriptedBackend):
    """A backend whose steps wait until somebody lets them go on, or raise an error."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(ScriptedEngine(DOCUMENT), **settings)
        self.may_step = threading.Event()
        self.error: BaseException | None = None
        self.num_steps = 0

    def step(self) -> Events:
        self.num_steps += 1
        if not self.may_step.is_set():
            time.sleep(0.002)
            if self.error is None:
                return []
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().step()


def recipe(**queue: Any) -> ServeRecipe:
    return ServeRecipe(queue=Queue(**queue))


async def settle(is_true: Callable[[], object]) -> None:
    """Wait until something is true; ``run`` ends a test that waits for ever."""
    while not is_true():
        await asyncio.sleep(0.005)


def limit_streams(monkeypatch: pytest.MonkeyPatch, *limits: Queue) -> None:
    """Give each request's reader limits of its own, in order of arrival.

    The engine keeps those of the server: a busy machine may take longer than a short limit.
    """
    given = iter(limits)
    monkeypatch.setattr(
        "pasta_lm.serve.engine_loop.ResponseStream",
        lambda request, _: ResponseStream(request, next(given)),
    )


def is_idle(app: Any) -> bool:
    engine = app.state.service.engine
    load = engine.load
    is_empty = not engine.backend.has_work and not load.num_orphan_threads
    return is_empty and load.num_running == load.num_waiting == 0


@pytest.mark.parametrize("body", [CHAT, STREAM, {**STREAM, "n": 4}])
@pytest.mark.parametrize("is_queued", [False, True])
def test_a_client_that_goes_away_leaves_nothing(body: dict[str, Any], is_queued: bool) -> None:
    async def leave() -> None:
        backend = Held(capacity=0 if is_queued else 8)
        app = create_app(backend)
        async with client_of(app) as client:
            gone = asyncio.ensure_future(client.post(PATH, json=body))
            engine = app.state.service.engine
            await settle(lambda: engine.load.num_running + engine.load.num_waiting == 1)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            await settle(lambda: is_idle(app))

    run(leave())


def test_an_error_in_a_step_ends_its_responses_and_leaves_the_server_up() -> None:
    async def fail() -> None:
        backend = Held()
        app = create_app(backend)
        async with client_of(app) as client:
            asked = [asyncio.ensure_future(client.post(PATH, json=one)) for one in (CHAT, STREAM)]
            await settle(lambda: app.state.service.engine.load.num_running == 2)
            backend.error = ValueError("a secret detail")
            whole, stream = await asyncio.gather(*asked)
            assert whole.status_code == 500
            assert whole.json()["error"]["code"] == "engine_error"
            assert streamed(stream)[-1]["error"]["code"] == "engine_error"
            assert "secret" not in whole.text + stream.text
            backend.may_step.set()
            assert (await client.get("/health")).status_code == 200
            again = await client.post(PATH, json=CHAT)
            assert again.json()["choices"][0]["message"]["content"] == TEXT
            assert is_idle(app) or await settle(lambda: is_idle(app)) is None

    run(fail())


class Poisoned(ScriptedEngine):
    """A script that breaks off for one prompt, before or after its first step."""

    def __init__(self, prompt: str, num_good_steps: int) -> None:
        super().__init__(DOCUMENT)
        self.poison = self.request(prompt).prompt
        self.num_good_steps = num_good_steps

    def steps(self, request: Request) -> Iterator[list[StreamEvent]]:
        for number, events in enumerate(super().steps(request)):
            if list(request.prompt) == list(self.poison) and number == self.num_good_steps:
                raise ValueError("a secret detail")
            yield events


@pytest.mark.parametrize("num_good_steps", [0, 5])
def test_an_error_in_a_step_ends_only_the_response_that_it_concerns(num_good_steps: int) -> None:
    async def fail() -> None:
        app = create_app(ScriptedBackend(Poisoned("poison", num_good_steps)))
        bad = {"messages": [{"role": "user", "content": "poison"}]}
        async with client_of(app) as client:
            for _ in range(MAX_FAILED_STEPS + 1):
                bodies = [STREAM, bad, {**STREAM, "n": 2}, {**bad, "stream": True}, CHAT]
                asked = [client.post(PATH, json=body) for body in bodies]
                stream, whole, several, broken, other = await asyncio.gather(*asked)
                assert (whole.status_code, whole.json()["error"]["code"]) == (500, "engine_error")
                assert streamed(broken)[-1]["error"]["code"] == "engine_error"
                assert "secret" not in whole.text + broken.text
                assert {text_of(streamed(stream)), text_of(streamed(several), 1)} == {TEXT}
                assert other.json()["choices"][0]["message"]["content"] == TEXT
            assert (await client.get("/health")).status_code == 200
            await settle(lambda: is_idle(app))

    run(fail())


def test_an_error_that_is_nobody_s_ends_what_runs_and_what_is_queued_goes_on() -> None:
    async def fail() -> None:
        backend = Held(capacity=1)
        app = create_app(backend)
        async with client_of(app) as client:
            asked = [asyncio.ensure_future(client.post(PATH, json=CHAT)) for _ in range(2)]
            engine = app.state.service.engine
            await settle(lambda: engine.load.num_running == engine.load.num_waiting == 1)
            backend.error = ValueError("the device")
            await settle(lambda: backend.error is None)
            backend.may_step.set()
            replies = await asyncio.gather(*asked)
            assert sorted(reply.status_code for reply in replies) == [200, 500]

    run(fail())


def test_a_dead_engine_is_told_to_every_client_and_to_health() -> None:
    async def die() -> None:
        backend = Held(capacity=2)
        app = create_app(backend)
        async with client_of(app) as client:
            engine = app.state.service.engine
            asked = [asyncio.ensure_future(client.post(PATH, json=one)) for one in (CHAT, STREAM)]
            await settle(lambda: engine.load.num_running == 2)
            asked += [asyncio.ensure_future(client.post(PATH, json=one)) for one in (CHAT, STREAM)]
            await settle(lambda: engine.load.num_waiting == 2)
            backend.error = SystemExit()
            replies = await asyncio.gather(*asked)
            assert [reply.status_code for reply in replies] == [500, 200, 500, 500]
            assert streamed(replies[1])[-1]["error"]["code"] == "engine_dead"
            assert (await client.get("/health")).status_code == 503
            late = await client.post(PATH, json=CHAT)
            assert late.status_code == 503
            assert "retry-after" in late.headers

    run(die())


def test_a_full_queue_and_a_long_wait_are_503_with_a_time_to_retry() -> None:
    async def fill() -> None:
        app = create_app(Held(capacity=0), recipe(waiting=0))
        engine = app.state.service.engine
        async with client_of(app) as client:
            first = asyncio.ensure_future(client.post(PATH, json=STREAM))
            await settle(lambda: engine.load.num_waiting == 1)
            full = await client.post(PATH, json=CHAT)
            engine._queue = Queue(wait_s=0.1)  # not before: the first one must still be waiting
            for reply, code in ((full, "queue_full"), (await first, "queue_wait")):
                assert reply.status_code == 503
                assert int(reply.headers["retry-after"]) > 0
                assert reply.json()["error"]["code"] == code
            await settle(lambda: is_idle(app))

    run(fill())


@pytest.mark.parametrize(
    ("limit", "code"), [({"wall_s": 0.1}, "wall_time"), ({"stall_s": 0.1}, "stall")]
)
def test_a_response_that_takes_too_long_ends_with_an_error_and_done(
    limit: dict[str, float], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_streams(monkeypatch, *[Queue(**limit)] * 2)

    async def wait() -> None:
        app = create_app(Held(), recipe(wall_s=limit.get("wall_s", 600)))
        async with client_of(app) as client:
            assert streamed(await client.post(PATH, json=STREAM))[-1]["error"]["code"] == code
            whole = await client.post(PATH, json=CHAT)
            assert (whole.status_code, whole.json()["error"]["code"]) == (503, code)
            await settle(lambda: is_idle(app))

    run(wait())


class Hanging(ScriptedBackend):
    """A backend whose steps do not come back before they may."""

    def __init__(self) -> None:
        super().__init__(ScriptedEngine(DOCUMENT), capacity=1)
        self.may_go_on = threading.Event()

    def step(self) -> Events:
        self.may_go_on.wait()
        return super().step()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let the step go on in the end, whatever happened in between."""
        try:
            yield
        finally:
            self.may_go_on.set()


def test_a_step_that_hangs_is_told_to_who_runs_and_to_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_streams(monkeypatch, Queue(stall_s=0.2), Queue(wait_s=0.2, stall_s=0.2))

    async def hang() -> None:
        backend = Hanging()
        app = create_app(backend)
        async with client_of(app) as client:
            with backend.hanging():
                runs = asyncio.ensure_future(client.post(PATH, json=STREAM))
                await settle(lambda: app.state.service.engine.load.num_running == 1)
                reply = await client.post(PATH, json=CHAT)
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "stall")
                assert streamed(await runs)[-1]["error"]["code"] == "stall"
                text = (await client.get("/metrics")).text
            assert 'pasta:limit_hits_total{limit="stall",model_name="script"} 2.0' in text
            await settle(lambda: is_idle(app))

    run(hang())


def test_while_a_step_hangs_no_request_is_taken_and_afterwards_they_are_again() -> None:
    async def hang() -> None:
        backend = Hanging()
        app = create_app(backend, recipe(stall_s=0.01))
        engine = app.state.service.engine
        async with client_of(app) as client:
            with backend.hanging():
                runs = asyncio.ensure_future(client.post(PATH, json=STREAM))
                await settle(lambda: engine.status == "stalled")
                assert (await client.get("/health")).json() == {"status": "stalled"}
                late = await client.post(PATH, json=CHAT)
                assert (late.status_code, late.json()["error"]["code"]) == (503, "stalled")
                assert streamed(await runs)[-1]["error"]["code"] == "stall"
            await settle(lambda: engine.status == "ok")
            engine._queue = Queue()  # a busy machine may be slower than the short limit
            again = await client.post(PATH, json=CHAT)
            assert again.json()["choices"][0]["message"]["content"] == TEXT

    run(hang())


def test_while_the_first_step_hangs_the_metrics_say_who_runs_and_who_waits() -> None:
    async def hang() -> None:
        backend = Hanging()
        app = create_app(backend)
        engine = app.state.service.engine
        async with client_of(app) as client:
            with backend.hanging():
                asked = [asyncio.ensure_future(client.post(PATH, json=CHAT)) for _ in range(3)]
                await settle(lambda: (engine.load.num_running, engine.load.num_waiting) == (1, 2))
                text = (await client.get("/metrics")).text
            assert 'pasta:num_requests_running{model_name="script"} 1.0' in text
            assert 'pasta:num_requests_waiting{model_name="script"} 2.0' in text
            assert [reply.status_code for reply in await asyncio.gather(*asked)] == [200] * 3

    run(hang())


def test_a_request_that_cannot_begin_ends_alone() -> None:
    class Refusing(ScriptedBackend):
        def submit(self, request: Request) -> int:
            if request.params.seed == 13:
                raise ValueError("a secret detail")
            return super().submit(request)

    async def begin() -> None:
        app = create_app(Refusing(ScriptedEngine(DOCUMENT)))
        async with client_of(app) as client:
            bodies = [CHAT, {**CHAT, "seed": 13}, {**STREAM, "seed": 13}, STREAM]
            replies = await asyncio.gather(*(client.post(PATH, json=body) for body in bodies))
            assert [reply.status_code for reply in replies] == [200, 500, 500, 200]
            assert replies[1].json()["error"]["code"] == "engine_error"
            assert "secret" not in replies[1].text
            assert (await client.get("/health")).status_code == 200
            await settle(lambda: is_idle(app))

    run(begin())


def test_a_silent_stream_is_pinged() -> None:
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def listen() -> None:
        may_go_on = asyncio.Event()

        async def texts() -> Any:
            yield "data: {}\n\n"
            await may_go_on.wait()
            yield "data: [DONE]\n\n"

        stream = EventStream(
            texts(), Queue(ping_s=0.01), close=lambda: None, slow=lambda _: sent.append(b"slow")
        )
        sending = asyncio.ensure_future(stream({"type": "http"}, never, send))
        await settle(lambda: sent.count(b": ping\n\n") >= 2)
        may_go_on.set()
        await sending

    run(listen())
    assert [one for one in sent if one and b"ping" not in one] == [
        b"data: {}\n\n",
        b"data: [DONE]\n\n",
    ]
    assert Queue().ping_s == 15


def test_a_reader_that_does_not_read_is_dropped() -> None:
    closed = []

    async def read_nothing(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    async def never() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def texts() -> Any:
        while True:
            yield "data: {}\n\n"

    async def send() -> None:
        stream = EventStream(
            texts(),
            Queue(send_s=0.05),
            close=lambda: closed.append("closed"),
            slow=lambda _: closed.append("slow"),
        )
        await stream({"type": "http"}, never, read_nothing)

    run(send())
    assert closed == ["slow", "closed"]


def test_what_a_slow_reader_has_not_read_is_bounded() -> None:
    async def fall_behind() -> None:
        app = create_app(scripted(), recipe(unread_steps=3))
        async with client_of(app):
            service = app.state.service
            from pasta_lm.engines.request import SamplingParams
            from pasta_lm.serve.api_error import ApiError
            from pasta_lm.serve.backends import Prompt

            request = service.backend.prepare(Prompt("a"), SamplingParams())
            stream = service.engine.submit(request)
            await settle(lambda: stream.is_closed and is_idle(app))  # all has been written
            assert stream.num_unread <= 4
            with pytest.raises(ApiError, match="too slow"):
                await stream.next()

    run(fall_behind())


def test_a_response_whose_reader_fell_behind_is_counted() -> None:
    async def fall_behind() -> None:
        backend = Held()
        app = create_app(backend, recipe(unread_steps=3))
        async with client_of(app) as client:
            asked = asyncio.ensure_future(client.post(PATH, json=CHAT))
            await settle(lambda: app.state.service.engine.load.num_running == 1)
            backend.may_step.set()
            while not is_idle(app):
                time.sleep(0.005)  # the event loop stands still, and with it the reader
            reply = await asked
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "slow_reader")
            text = (await client.get("/metrics")).text
        assert 'pasta:limit_hits_total{limit="slow_reader",model_name="script"} 1.0' in text

    run(fall_behind())


def test_draining_refuses_new_work_and_finishes_what_runs() -> None:
    async def drain() -> None:
        backend = Held()
        app = create_app(backend)
        async with client_of(app) as client:
            running = asyncio.ensure_future(client.post(PATH, json=STREAM))
            await settle(lambda: app.state.service.engine.load.num_running == 1)
            app.state.service.engine.drain()
            assert (await client.post(PATH, json=CHAT)).status_code == 503
            assert (await client.get("/health")).json() == {"status": "draining"}
            backend.may_step.set()
            assert text_of(streamed(await running)) == TEXT

    run(drain())


def test_what_is_not_finished_at_the_deadline_is_told_so() -> None:
    async def drain() -> None:
        app = create_app(Held(), recipe(drain_s=0.05))
        async with client_of(app) as client:
            running = asyncio.ensure_future(client.post(PATH, json=STREAM))
            await settle(lambda: app.state.service.engine.load.num_running == 1)
            app.state.service.engine.drain()
            assert streamed(await running)[-1]["error"]["code"] == "shutdown"

    run(drain())


# Metrics and the log


def test_metrics_have_vllm_s_names_and_ours() -> None:
    async def read() -> str:
        app = create_app(scripted())
        async with client_of(app) as client:
            await client.post(PATH, json={**CHAT, "n": 2})
            await client.post(PATH, json={**CHAT, "max_tokens": 5})
            await settle(lambda: is_idle(app))
            return (await client.get("/metrics")).text

    text = run(read())
    model = 'model_name="script"'
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert f"pasta:{name}{{{model}}} 0.0" in text
    for name, number in (
        ("time_to_first_token_seconds", 2),
        ("e2e_request_latency_seconds", 2),
        ("parallelism", 3),
        ("critical_path_tokens", 3),
    ):
        assert f"pasta:{name}_count{{{model}}} {number}.0" in text
    assert f'pasta:request_success_total{{finished_reason="length",{model}}} 1.0' in text
    assert f'pasta:limit_hits_total{{limit="length",{model}}} 1.0' in text
    assert f"pasta:num_orphan_threads{{{model}}} 0.0" in text
    assert "pasta:inter_token_latency_seconds_bucket" in text


@pytest.mark.parametrize("logs_prompts", [False, True])
def test_the_log_has_a_line_a_request_and_prompts_only_on_demand(
    logs_prompts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def write() -> httpx.Response:
        app = create_app(scripted(), logs_prompts=logs_prompts)
        async with client_of(app) as client:
            return await client.post(PATH, json=STREAM, headers={"X-Request-Id": "one"})

    with caplog.at_level(logging.INFO, "pasta_lm.serve"):
        run(write())
    (record,) = [one for one in caplog.records if one.name == "pasta_lm.serve.requests"]
    line = json.loads(JsonLines().format(record))
    assert (line["request_id"], line["status"], line["path"]) == ("one", 200, PATH)
    assert line["num_threads"] == [4]
    assert ("live well" in json.dumps(line)) is logs_prompts
    assert "morning sun" not in json.dumps(line)
