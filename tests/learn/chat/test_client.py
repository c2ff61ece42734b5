from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from pasta_lm import errors
from pasta_lm.engines.servers import client as http
from pasta_lm.engines.servers import cluster
from pasta_lm.errors import EndpointError, PastaError, RemoteError, RequestError, UsageError
from pasta_lm.learn.chat import client
from pasta_lm.learn.chat.client import ChatClient, ChatReply, ChatRequest, Endpoint, read_reply
from pasta_lm.learn.chat.pool import next_in_thread
from tests.fakes.scripted_server import Faults, ScriptedReply, ScriptedServer
from tests.learn.judge.endpoint import ScriptedTransport

HELLO = ChatRequest([{"role": "user", "content": "hello"}], max_tokens=9)
POLICY = http.RetryPolicy(max_requests=4)
QUICK = replace(POLICY, first_delay_s=0.0)


def echo(asked: object) -> ScriptedReply:
    assert isinstance(asked, dict)
    return ScriptedReply(f"{asked['messages'][-1]['content']} \u00e9!")


OK = http.HttpReply(200, {}, b'{"choices": [{"message": {"content": "yes"}}]}')


def playing(
    *answers: http.HttpReply | Exception, gate: asyncio.Event | None = None
) -> ScriptedTransport:
    """Return a transport that gives these answers one after another, and then good ones."""
    left = iter(answers)

    def script(_: str) -> http.HttpReply:
        answer = next(left, OK)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ScriptedTransport(script, gate)


def status(number: int, code: str = "", **headers: str) -> http.HttpReply:
    body = json.dumps({"error": {"message": "no", "code": code}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.HttpReply(number, named, body)


def complete(*servers: Any, policy: http.RetryPolicy = QUICK, **where: Any) -> ChatReply:
    async def run() -> ChatReply:
        endpoint = Endpoint(**{"base_url": "http://h/v1", "model": "m", **where})
        async with ChatClient(endpoint, policy=policy, servers=servers) as one:
            return await one.complete(HELLO)

    return asyncio.run(run())


def ask(transport: ScriptedTransport, waits: list[float] | None = None, **where: Any) -> ChatReply:
    noted = waits if waits is not None else []

    async def sleep(delay_s: float) -> None:
        noted.append(delay_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "sleep", sleep)
        return complete(transport, **{"policy": POLICY, **where})


@pytest.mark.parametrize(
    "failure",
    [
        *(status(number) for number in (408, 409, 429, 500, 502, 503, 529)),
        http.TemporaryFailure("broken"),
        http.HttpReply(200, {}, OK.body[:20]),
        http.HttpReply(200, {}, b"[]"),
        http.HttpReply(200, {}, b'{"choices": []}'),
        http.HttpReply(502, {}, b"<html>"),
    ],
)
def test_temporary_failures_are_retried(failure: http.HttpReply | Exception) -> None:
    transport = playing(failure, failure)
    assert (ask(transport).text, len(transport.bodies)) == ("yes", 3)


def test_the_number_of_requests_is_bounded() -> None:
    transport = playing(*[status(500)] * 9)
    with pytest.raises(RemoteError, match="after 4 requests, the last: HTTP 500: no"):
        ask(transport)
    assert len(transport.bodies) == 4


@pytest.mark.parametrize(
    ("failure", "kind", "advice"),
    [
        (status(401), EndpointError, "api_key_env"),
        (status(403), EndpointError, "may not use"),
        (status(404), EndpointError, "base_url"),
        (status(402), EndpointError, "credit"),
        (status(429, "insufficient_quota"), EndpointError, "credit"),
        (status(400), RequestError, "refuses the request: HTTP 400: no"),
    ],
)
def test_permanent_failures_are_not_retried(
    failure: http.HttpReply, kind: type[Exception], advice: str
) -> None:
    transport = playing(failure)
    with pytest.raises(kind, match=advice):
        ask(transport)
    assert len(transport.bodies) == 1


@pytest.mark.parametrize(("policy", "wanted_s"), [(POLICY, 7), (cluster.POLICY, 290)])
def test_retry_after_is_respected_with_jitter(policy: http.RetryPolicy, wanted_s: int) -> None:
    waits: list[float] = []
    ask(playing(status(429, retry_after=str(wanted_s)), status(503)), waits, policy=policy)
    first, second, third = waits
    assert (first, 0 <= second <= 1, 0 <= third <= 2) == (wanted_s, True, True)


def test_a_retry_after_of_an_hour_is_a_failure() -> None:
    waits: list[float] = []
    with pytest.raises(RemoteError, match="wait 3600 s"):
        ask(playing(status(429, retry_after="3600")), waits)
    assert not waits


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("-4", 0),
        ("Wed, 21 Oct 2026 07:28:10 GMT", 10),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0),
        ("soon", None),
        ("nan", None),
        ("", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str, expected: float | None) -> None:
    now = datetime(2026, 10, 21, 7, 28, tzinfo=UTC)
    assert http.retry_after({"retry-after": value}, now) == expected


def test_delays_grow_to_a_bound_and_never_pass_it() -> None:
    policy = http.RetryPolicy(first_delay_s=1, max_delay_s=8)
    for num_failed, longest in [(1, 1), (2, 2), (3, 4), (4, 8), (9, 8)]:
        drawn = [policy.delay_s(num_failed) for _ in range(200)]
        assert longest * 0.9 < max(drawn) <= longest
        assert min(drawn) < longest * 0.1


def test_replies_come_over_http_with_their_log_probabilities() -> None:
    logprobs = {"m": -0.1, "M": -2.5}
    play = lambda asked: ScriptedReply("m \u00e9", logprobs if asked["top_logprobs"] == 2 else {})  # noqa: E731
    faults = Faults(server_error=0.3, broken_off=0.2, truncated=0.2)

    async def run(server: ScriptedServer) -> list[ChatReply]:
        where = Endpoint(base_url=server.base_url, model="scripted")
        policy = http.RetryPolicy(max_requests=40, first_delay_s=0.001, max_delay_s=0.002)
        async with ChatClient(where, policy=policy) as one:
            request = replace(HELLO, top_logprobs=2)
            return await asyncio.gather(*(one.complete(request) for _ in range(8)))

    with ScriptedServer(play, faults) as server:
        replies = asyncio.run(run(server))
    assert {reply.text for reply in replies} == {"m \u00e9"}
    assert {reply.raw["model"] for reply in replies} == {"scripted"}
    stored = [read_reply(json.dumps(reply.raw)) for reply in replies]
    assert all(reply.candidates == logprobs for reply in [*replies, *stored])
    assert server.num_requests > 8


@pytest.mark.parametrize(
    ("parts", "text", "refusal"),
    [
        ([{"type": "text", "text": "One "}, {"type": "text", "text": "two"}], "One two", None),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "So."}], "So.", None),
        ([{"type": "refusal", "refusal": "I will not."}], "", "I will not."),
    ],
)
def test_a_content_may_be_a_list_of_parts(parts: object, text: str, refusal: str | None) -> None:
    reply = read_reply({"choices": [{"message": {"content": parts}}]})
    assert (reply.text, reply.refusal) == (text, refusal)


def test_a_part_of_another_type_is_no_text() -> None:
    with pytest.raises(RemoteError, match="not a chat completion"):
        read_reply({"choices": [{"message": {"content": [{"type": "audio", "data": "x"}]}}]})


def test_an_answer_that_takes_too_long_is_a_temporary_failure() -> None:
    transport = playing(gate=asyncio.Event())
    with pytest.raises(RemoteError, match=r"nothing within 0\.01 s"):
        complete(transport, timeout_s=0.01)
    assert len(transport.bodies) == 4


def test_a_wrong_key_or_model_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        ("wrong", "scripted", EndpointError, "401"),
        ("right", "other", EndpointError, "no model other"),
        ("", "scripted", UsageError, "A_KEY is not set"),
        ("\u201csk-1\u201d", "scripted", UsageError, "A_KEY contains characters that no key has"),
    ]
    with ScriptedServer(echo, api_key="right") as server:
        for key, model, kind, message in cases:
            monkeypatch.setenv("A_KEY", key)
            with pytest.raises(kind, match=message):
                complete(base_url=server.base_url, model=model, api_key_env="A_KEY")
        assert server.num_requests == 2


def test_keys_and_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    class Listening(ScriptedServer):
        def _refuse(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, str] | None:
            seen.append({name.lower(): value for name, value in handler.headers.items()})
            return super()._refuse(handler, body)

    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Mine: secret\nAuthorization: secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Listening(echo) as server:
        assert asyncio.run(post_once(server.base_url)).status == 200
        (headers,) = seen
    assert "secret" not in str(headers)
    assert "authorization" not in headers


def test_a_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "find_spec", lambda name: None)
    with pytest.raises(errors.MissingExtraError, match=r"pip install .*annotate"):
        complete()


async def post_once(base_url: str) -> http.HttpReply:
    server = http.HttpClient(base_url, None)
    try:
        return await server.send("POST", client.PATH, HELLO.body("scripted"))
    finally:
        await server.close()


def test_a_server_that_does_not_listen_is_a_temporary_failure() -> None:
    with pytest.raises(http.TemporaryFailure, match="no connection"):
        asyncio.run(post_once("http://127.0.0.1:9/v1"))


@pytest.mark.parametrize(
    "url", ["localhost:8000/v1", "ftp://h/v1", "http:///v1", "http://h:x/v1", "http://[::1/v1", ""]
)
def test_a_wrong_address_is_never_tried(url: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        complete(base_url=url)


def test_a_reply_without_end_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_REPLY_BYTES", 5000)
    with (
        ScriptedServer(lambda asked: ScriptedReply("x" * 5000)) as server,
        pytest.raises(http.TemporaryFailure, match="more than 5000 bytes"),
    ):
        asyncio.run(post_once(server.base_url))


@pytest.mark.parametrize("failure", [None, status(500)])
def test_a_drained_client_awaits_a_request_and_repeats_none(failure: http.HttpReply | None) -> None:
    gate = asyncio.Event()

    async def run() -> ChatReply | BaseException:
        where = Endpoint(base_url="http://h/v1", model="m")
        transport = playing(*([failure] if failure else []), gate=gate)
        one = ChatClient(where, servers=[transport])
        task = asyncio.create_task(one.complete(HELLO))
        await asyncio.sleep(0)
        assert one.sending == {task}
        one.drain()
        gate.set()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert (len(transport.bodies), one.sending) == (1, set())
        return ended

    assert isinstance(asyncio.run(run()), asyncio.CancelledError if failure else ChatReply)


def test_a_password_of_the_address_is_in_no_message() -> None:
    urls = "http://me:s3cret@h/v1,http://you:s3cret@g/v1"
    assert Endpoint(base_url=urls, model="m").address == "http://h/v1,http://g/v1"
    for transport in (playing(status(401)), playing(*[status(500)] * 4), playing(status(400))):
        with pytest.raises(PastaError) as raised:
            complete(transport, base_url=urls)
        assert "s3cret" not in str(raised.value)


def test_a_model_that_wants_max_completion_tokens_gets_it() -> None:
    message = "Unsupported parameter: use 'max_completion_tokens' instead."
    body = json.dumps({"error": {"message": message}}).encode()
    transport = playing(http.HttpReply(400, {}, body))

    async def run() -> None:
        one = ChatClient(Endpoint(base_url="http://h/v1", model="m"), servers=[transport])
        for _ in range(2):
            await one.complete(HELLO)

    asyncio.run(run())
    assert [body.get("max_tokens") for body in transport.bodies] == [9, None, None]
    assert [body.get("max_completion_tokens") for body in transport.bodies] == [None, 9, 9]


def test_a_caller_of_a_source_that_hangs_can_be_cancelled() -> None:
    go_on, over = threading.Event(), threading.Event()

    def rows() -> Iterator[int]:
        go_on.wait(60)
        yield 1

    async def run() -> None:
        waiting = asyncio.create_task(next_in_thread(rows()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        over.set()

    asyncio.run(run())
    assert over.is_set()
    assert not go_on.is_set()
    go_on.set()


def test_servers_take_turns() -> None:
    async def check() -> None:
        servers = [playing(), playing(), playing()]
        endpoint = Endpoint(base_url="http://h/v1", model="m")
        async with ChatClient(endpoint, servers=servers) as client:
            await asyncio.gather(*(client.complete(HELLO) for _ in range(9)))
            assert [len(one.bodies) for one in servers] == [3, 3, 3]
        assert all(one.is_closed for one in servers)

    asyncio.run(check())


def test_no_request_begins_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        seen: list[str] = []

        async def sleep(delay_s: float) -> None:
            for _ in range(int(delay_s)):
                await asyncio.sleep(0)
            seen.append(f"{delay_s} s are over")

        monkeypatch.setattr(http, "sleep", sleep)
        pause = http.Pause()

        async def one() -> None:
            await pause.over()
            seen.append("began")

        pausing = [asyncio.create_task(pause.wait(delay_s)) for delay_s in (5, 20)]
        await asyncio.sleep(0)
        await asyncio.gather(*pausing, one())
        return seen

    assert asyncio.run(run()) == ["5 s are over", "20 s are over", "began"]
