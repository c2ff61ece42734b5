"""Clients that go away, engines that fail, queues that are full: nothing leaks, nobody waits."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.serve import Bounds, Queue, ServeRecipe
from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import Events
from pasta_lm.serve.engine_loop import MAX_FAILED_STEPS
from pasta_lm.serve.errors import ApiError
from pasta_lm.serve.guard import JsonLines, PlainLines
from pasta_lm.serve.jobs import ResponseStream
from pasta_lm.serve.protocol import ClientPrompt
from pasta_lm.serve.service import EventStream
from tests.fakes.scripted_backend import HangingBackend, HeldBackend, ScriptedBackend
from tests.serve.conftest import (
    CHAT,
    DOCUMENT,
    TEXT,
    ask,
    client_of,
    held,
    is_idle,
    post,
    recipe,
    scenario,
    scripted,
    settle,
    streamed,
    text_of,
)

PATH = "/v1/chat/completions"
STREAM = {**CHAT, "stream": True}


def posts(client: httpx.AsyncClient, *bodies: dict[str, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(client.post(PATH, json=body)) for body in bodies]


@scenario
async def test_an_error_in_a_step_ends_its_responses_and_leaves_the_server_up() -> None:
    backend = held(capacity=2)
    app = create_app(backend)
    async with client_of(app) as client:
        running = posts(client, CHAT, STREAM)
        await settle(lambda: app.state.service.engine.load["num_requests_running"] == 2)
        queued = posts(client, CHAT)
        await settle(lambda: app.state.service.engine.load["num_requests_waiting"] == 1)
        backend.error = ValueError("a secret detail")
        whole, stream = await asyncio.gather(*running)
        assert whole.status_code == 500
        assert whole.json()["error"]["code"] == "engine_error"
        assert streamed(stream)[-1]["error"]["code"] == "engine_error"
        assert "secret" not in whole.text + stream.text
        backend.may_step.set()
        assert (await queued[0]).json()["choices"][0]["message"]["content"] == TEXT
        assert (await client.get("/health")).status_code == 200
        await settle(lambda: is_idle(app))


class BrokenBackend(ScriptedBackend):
    async def step(self) -> Events:
        await asyncio.sleep(0.01)
        raise ValueError("a secret detail")


@scenario
async def test_a_dead_engine_is_reported_to_every_client_and_by_health() -> None:
    app = create_app(BrokenBackend(ScriptedEngine(DOCUMENT), capacity=1))
    async with client_of(app) as client:
        replies = await asyncio.gather(*posts(client, *[CHAT] * (MAX_FAILED_STEPS + 2)))
        codes = sorted(reply.json()["error"]["code"] for reply in replies)
        assert codes == ["engine_dead"] * 2 + ["engine_error"] * MAX_FAILED_STEPS
        assert (await client.get("/health")).json() == {"status": "dead"}
        late = await client.post(PATH, json=CHAT)
        assert late.status_code == 503
        assert "retry-after" in late.headers


@scenario
async def test_a_full_queue_and_a_long_wait_are_503_with_a_time_to_retry() -> None:
    app = create_app(held(capacity=0), recipe(waiting=0, wait_s=0.5))
    engine = app.state.service.engine
    async with client_of(app) as client:
        (first,) = posts(client, STREAM)
        await settle(lambda: engine.load["num_requests_waiting"] == 1)
        full = await client.post(PATH, json=CHAT)
        for reply, code in ((full, "queue_full"), (await first, "queue_wait")):
            assert reply.status_code == 503
            assert int(reply.headers["retry-after"]) > 0
            assert reply.json()["error"]["code"] == code
        await settle(lambda: is_idle(app))


@scenario
async def test_a_response_that_takes_too_long_ends_with_an_error_and_done() -> None:
    app = create_app(held(), recipe(wall_s=0.1))
    async with client_of(app) as client:
        pieces = streamed(await client.post(PATH, json=STREAM))
        assert pieces[-1]["error"]["code"] == "wall_time"
        whole = await client.post(PATH, json=CHAT)
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "wall_time")
        await settle(lambda: is_idle(app))


@scenario
async def test_a_step_that_hangs_ends_all_requests_and_afterwards_they_are_taken_again() -> None:
    backend = HangingBackend(DOCUMENT, capacity=1)
    app = create_app(backend, recipe(stall_s=0.1))
    engine = app.state.service.engine
    async with client_of(app) as client:
        runs, waits = posts(client, STREAM, CHAT)
        await settle(lambda: engine.status == "stalled")
        assert (await client.get("/health")).json() == {"status": "stalled"}
        late = await client.post(PATH, json=CHAT)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "stalled")
        assert streamed(await runs)[-1]["error"]["code"] == "stall"
        reply = await waits
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "stall")
        text = (await client.get("/metrics")).text
        assert 'pasta:limit_hits_total{limit="stall",model_name="script"} 2.0' in text
        engine.queue = Queue()  # a busy machine may be slower than the short limit
        backend.may_go_on.set()
        await settle(lambda: engine.status == "ok" and is_idle(app))
        again = await client.post(PATH, json=CHAT)
        assert again.json()["choices"][0]["message"]["content"] == TEXT


class RefusingBackend(ScriptedBackend):
    def submit(self, request: Request) -> int:
        if request.params.seed == 13:
            raise ValueError("a secret detail")
        return super().submit(request)


@scenario
async def test_a_request_that_cannot_begin_ends_alone() -> None:
    app = create_app(RefusingBackend(ScriptedEngine(DOCUMENT)))
    async with client_of(app) as client:
        bodies = [CHAT, {**CHAT, "seed": 13}, {**STREAM, "seed": 13}, STREAM]
        replies = await asyncio.gather(*posts(client, *bodies))
        assert [reply.status_code for reply in replies] == [200, 500, 500, 200]
        assert replies[1].json()["error"]["code"] == "engine_error"
        assert "secret" not in replies[1].text
        assert (await client.get("/health")).status_code == 200
        await settle(lambda: is_idle(app))


SCOPE = {"type": "http", "method": "POST"}


async def stays() -> dict[str, Any]:
    """Receive nothing: the client stays."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


Send = Callable[[Any], Coroutine[Any, Any, None]]


async def sent_by(send: Send, may_end: asyncio.Event, **queue: float) -> bool:
    """Send a stream of one event, which ends when it may; return whether it was closed."""
    has_ended = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        await may_end.wait()

    await EventStream(events(), Queue(**queue), has_ended.set)(SCOPE, stays, send)  # type: ignore[arg-type]
    return has_ended.is_set()


@scenario
async def test_a_silent_stream_is_pinged() -> None:
    sent, may_end = list[bytes](), asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent.count(b": ping\n\n") == 2:
            may_end.set()

    assert await sent_by(send, may_end, ping_s=0.01)
    assert [body for body in sent if body and b"ping" not in body] == [b"data: {}\n\n"]


@scenario
async def test_a_stream_that_takes_too_long_to_be_sent_is_ended() -> None:
    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    assert await sent_by(send, asyncio.Event(), send_s=0.01)


class Noting(HeldBackend):
    def submit(self, request: Request) -> int:
        self.begun = [*getattr(self, "begun", []), request.params.max_tokens]
        return super().submit(request)


@scenario
async def test_clients_take_turns_and_the_newest_request_of_the_largest_gives_way() -> None:
    backend = Noting(DOCUMENT, capacity=2)
    app = create_app(backend, recipe(waiting=6))
    async with client_of(app):
        engine = app.state.service.engine

        def submit(num_tokens: int, client: str) -> ResponseStream:
            params = SamplingParams(max_tokens=num_tokens)
            return engine.submit([backend.prepare(ClientPrompt("a"), params)], client)

        streams = [submit(1, "many") for _ in range(7)]
        submit(2, "other")
        with pytest.raises(ApiError, match="are waiting"):
            await streams[-1].next()  # its place is the other's, who waits with fewer
        with pytest.raises(ApiError, match="are waiting"):
            submit(1, "many")
        await settle(lambda: engine.load["num_requests_running"] == 2)
        assert backend.begun == [1, 2]
        backend.may_step.set()
        await settle(lambda: len(backend.begun) == 7)


@scenario
async def test_draining_refuses_new_work_and_finishes_running_requests() -> None:
    backend = held()
    app = create_app(backend)
    engine = app.state.service.engine
    async with client_of(app) as client:
        (running,) = posts(client, STREAM)
        await settle(lambda: engine.load["num_requests_running"] == 1)
        engine.drain()
        await settle(lambda: engine.status == "draining")
        assert (await client.post(PATH, json=CHAT)).status_code == 503
        assert (await client.get("/health")).json() == {"status": "draining"}
        backend.may_step.set()
        assert text_of(streamed(await running)) == TEXT


@scenario
async def test_metrics_have_vllm_s_names_and_ours() -> None:
    app = create_app(scripted())
    async with client_of(app) as client:
        await client.post(PATH, json={**CHAT, "n": 2})
        await client.post(PATH, json={**CHAT, "max_tokens": 5})
        await settle(lambda: is_idle(app))
        text = (await client.get("/metrics")).text
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


def test_the_log_has_a_line_a_request_without_its_texts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pasta_lm.serve"):
        ask("POST", PATH, json=STREAM, headers={"X-Request-Id": "one"})
    (record,) = [entry for entry in caplog.records if entry.name == "pasta_lm.serve.requests"]
    plain, line = PlainLines().format(record), json.loads(JsonLines().format(record))
    assert re.search(rf"^[\d:]+ 200 POST {PATH}, \d+\.\d\d s, \d+ tokens", plain)
    assert (line["request_id"], line["status"], line["path"]) == ("one", 200, PATH)
    assert line["num_threads"] == [4]
    for text in (plain, json.dumps(line)):
        assert "live well" not in text
        assert "morning sun" not in text


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(("num_more", "status"), [(0, 200), (1, 413)])
@pytest.mark.parametrize("is_in_parts", [False, True])
def test_a_body_has_at_most_two_mebibytes(num_more: int, status: int, is_in_parts: bool) -> None:
    head, tail = b'{"messages": [{"role": "user", "content": "a"}], "user": "', b'"}'
    body = head + b"x" * (2 * 1024 * 1024 + num_more - len(head) - len(tail)) + tail

    async def parts() -> Any:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    content = parts() if is_in_parts else body
    assert ask("POST", PATH, content=content, headers=JSON).status_code == status


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    app = create_app(scripted(), recipe(read_s=0.05))
    reply = ask("POST", PATH, app=app, content=half(), headers=JSON)
    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "body_too_slow")


@pytest.mark.parametrize("limits", [Bounds(tokens=12), Bounds(tokens_per_thread=5)])
@pytest.mark.parametrize("n", [1, 4])
def test_a_limit_of_tokens_holds_whatever_is_asked(limits: Bounds, n: int) -> None:
    app = create_app(scripted(), ServeRecipe(limits=limits))
    options = {"max_tokens_per_thread": 900, "max_threads": 60}
    told = post(PATH, {**CHAT, "max_tokens": 4000, "n": n, "pasta": options}, app=app).json()[
        "pasta"
    ]
    assert told["max_tokens"] == min(4000, limits.tokens)
    assert told["max_tokens_per_thread"] == min(900, limits.tokens_per_thread)
    assert len(told["choices"]) == n
    for choice in told["choices"]:
        lengths = [one["num_tokens"] for one in choice["threads"]]
        assert sum(lengths) <= limits.tokens
        assert max(lengths[1:], default=0) <= limits.tokens_per_thread


def test_keys_of_any_length_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Mock(wraps=hmac.compare_digest)
    monkeypatch.setattr("pasta_lm.serve.guard.hmac.compare_digest", compared)
    app = create_app(scripted(), api_key="secret")
    for key in ("", "wrong", "x" * 5000):
        headers = {"Authorization": f"Bearer {key}"}
        assert ask("GET", "/v1/models", app=app, headers=headers).status_code == 401
        one, other = compared.call_args.args
        assert len(one) == len(other)
        assert b"secret" not in other


PATHS = ("/%00", "/a%00b", "/" + "a" * 5000, "/%ff", "/..%2f..%2fetc%2fpasswd", "//", "/v1//")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "OTHER")


@scenario
async def test_no_path_or_method_is_an_error_of_the_server() -> None:
    async with client_of(create_app(scripted())) as client:
        for path in (*PATHS, "/v1/events/%00", "/v1/events/" + "a" * 3000, PATH, "/health"):
            for method in METHODS:
                assert (await client.request(method, path)).status_code < 500, (method, path)


DEPTHS = (10, 200, 500, 900, 990, 1000, 5000, 100_000)
PLACES = ('{"messages": @}', '{"messages": [{"role": "user", "content": @}]}')
PLACES += ('{"pasta": {"a": @}}', '{"messages": [{"role": "user", "content": "a"}], "b": @}')


@pytest.mark.parametrize("place", PLACES)
@scenario
async def test_json_of_any_depth_is_read_or_refused(place: str) -> None:
    async with client_of(create_app(scripted())) as client:
        for depth in DEPTHS:
            for opens, closes in (("[", "]"), ('{"a": ', "}")):
                deep = opens * depth + "1" * (opens != "[") + closes * depth
                body = place.replace("@", deep)
                reply = await client.post(PATH, content=body, headers=JSON)
                assert reply.status_code in (200, 400), depth
