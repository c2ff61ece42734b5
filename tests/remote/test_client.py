from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random

import pytest

from pasta_lm.errors import EndpointError, RemoteError, RequestError, UsageError
from pasta_lm.remote.chat import Candidate, ChatReply, ChatRequest, TokenLogprob, read_reply
from pasta_lm.remote.client import ChatClient, Endpoint
from pasta_lm.remote.pace import Pace
from pasta_lm.remote.retry import Fate, RetryPolicy, fate, retry_after
from pasta_lm.remote.scripted_server import Faults, ScriptedReply, ScriptedServer
from pasta_lm.remote.transport import HttpxTransport, Response, StreamTransport, Transport

HELLO = ChatRequest([{"role": "user", "content": "hello"}])
POLICY = RetryPolicy(max_requests=4)


def echo(asked: object) -> ScriptedReply:
    assert isinstance(asked, dict)
    return ScriptedReply(f"{asked['messages'][-1]['content']} \u00e9!")


class Answers:
    """A transport that gives prepared answers, then 200."""

    def __init__(self, *answers: Response | Exception) -> None:
        self.answers = list(answers)
        self.num_posts = 0

    async def post(self, url: str, headers: object, body: bytes) -> Response:
        self.num_posts += 1
        answer = self.answers.pop(0) if self.answers else OK
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        pass


OK = Response(200, {}, b'{"choices": [{"message": {"content": "yes"}}]}')


def status(number: int, code: str = "", **headers: str) -> Response:
    body = json.dumps({"error": {"message": "no", "code": code}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(number, named, body)


def ask(transport: Transport, waits: list[float] | None = None) -> ChatReply:
    noted = waits if waits is not None else []

    async def sleep(delay_s: float) -> None:
        noted.append(delay_s)

    async def run() -> ChatReply:
        client = ChatClient(
            Endpoint(base_url="http://h/v1", model="m", timeout_s=0.5),
            policy=POLICY,
            transport=transport,
            random=Random(0),
            pace=Pace(sleep=sleep),
            sleep=sleep,
        )
        async with client:
            return await client.complete(HELLO)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "failure",
    [
        *(status(number) for number in (408, 409, 429, 500, 502, 503, 529)),
        RemoteError("broken"),
        Response(200, {}, OK.body[:20]),
        Response(200, {}, b"[]"),
        Response(200, {}, b'{"choices": []}'),
        Response(502, {}, b"<html>"),
    ],
)
def test_what_may_pass_is_asked_again(failure: Response | Exception) -> None:
    transport = Answers(failure, failure)
    assert (ask(transport).text, transport.num_posts) == ("yes", 3)


def test_the_number_of_requests_is_bounded() -> None:
    transport = Answers(*[status(500)] * 9)
    with pytest.raises(RemoteError, match="after 4 requests, the last: HTTP 500: no"):
        ask(transport)
    assert transport.num_posts == 4


@pytest.mark.parametrize(
    ("failure", "kind", "advice"),
    [
        (status(401), EndpointError, "api_key_env"),
        (status(403), EndpointError, "may not use"),
        (status(404), EndpointError, "base_url"),
        (status(402), EndpointError, "credit"),
        (status(429, "insufficient_quota"), EndpointError, "credit"),
        (status(400), RequestError, "refuses the request: HTTP 400: no"),
        (status(413), RequestError, "413"),
        (status(422), RequestError, "422"),
    ],
)
def test_what_will_not_pass_is_never_asked_again(
    failure: Response, kind: type[Exception], advice: str
) -> None:
    transport = Answers(failure)
    with pytest.raises(kind, match=advice):
        ask(transport)
    assert transport.num_posts == 1


def test_retry_after_is_waited_for_and_jitter_comes_on_top() -> None:
    waits: list[float] = []
    ask(Answers(status(429, retry_after="7"), status(503)), waits)
    assert waits[0] == 7
    assert 0 <= waits[1] <= 1
    assert 0 <= waits[2] <= 2
    assert len(waits) == 3


def test_a_server_that_asks_for_an_hour_is_not_waited_for() -> None:
    waits: list[float] = []
    with pytest.raises(RemoteError, match="wait 3600 s"):
        ask(Answers(status(429, retry_after="3600")), waits)
    assert waits == []


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
    found = retry_after({"retry-after": value}, now)
    assert (found.delay_s if found else None) == expected


def test_every_status_has_one_fate() -> None:
    retried = {one for one in range(200, 600) if fate(one) in (Fate.RETRY, Fate.SLOW_DOWN)}
    assert retried == {408, 409, 429, *range(500, 600)}


def test_delays_grow_to_a_bound_and_never_pass_it() -> None:
    policy, random = RetryPolicy(first_delay_s=1, max_delay_s=8), Random(1)
    for num_failed, longest in [(1, 1), (2, 2), (3, 4), (4, 8), (9, 8)]:
        drawn = [policy.delay_s(num_failed, random) for _ in range(200)]
        assert longest * 0.9 < max(drawn) <= longest
        assert min(drawn) < longest * 0.1


@pytest.mark.parametrize("make", [StreamTransport, HttpxTransport])
def test_both_transports_bring_the_same_reply_with_its_log_probabilities(
    make: Callable[[], Transport],
) -> None:
    if make is HttpxTransport:
        pytest.importorskip("httpx")
    logprobs = (TokenLogprob("m", -0.1, (Candidate("m", -0.1), Candidate("M", -2.5))),)
    play = lambda asked: ScriptedReply("m \u00e9", logprobs if asked["top_logprobs"] == 2 else ())  # noqa: E731
    faults = Faults(server_error=0.3, broken_off=0.2, truncated=0.2)

    async def run(server: ScriptedServer) -> list[ChatReply]:
        where = Endpoint(base_url=server.base_url, model="scripted")
        policy = RetryPolicy(max_requests=40, first_delay_s=0.001, max_delay_s=0.002)
        async with ChatClient(where, policy=policy, transport=make()) as client:
            request = ChatRequest(HELLO.messages, top_logprobs=2)
            return await asyncio.gather(*(client.complete(request) for _ in range(8)))

    with ScriptedServer(play, faults) as server:
        replies = asyncio.run(run(server))
    assert {(one.text, one.logprobs, one.model) for one in replies} == {
        ("m \u00e9", logprobs, "scripted")
    }
    assert all(read_reply(json.dumps(one.raw)).logprobs == logprobs for one in replies)
    assert sum(one.num_requests for one in replies) == server.num_requests > 8


def test_a_server_that_hangs_is_left_after_the_time_out() -> None:
    async def run(server: ScriptedServer) -> str:
        where = Endpoint(base_url=server.base_url, model="scripted", timeout_s=0.2)
        policy = RetryPolicy(max_requests=2, first_delay_s=0)
        async with ChatClient(where, policy=policy, transport=StreamTransport()) as client:
            await client.complete(HELLO)
        return "answered"

    with (
        ScriptedServer(echo, Faults(hang=1.0)) as server,
        pytest.raises(RemoteError, match=r"nothing within 0\.2 s"),
    ):
        asyncio.run(run(server))
    assert server.outcomes["hang"] == server.num_requests == 2


def test_a_wrong_key_or_model_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(base_url: str, model: str) -> None:
        where = Endpoint(base_url=base_url, model=model, api_key_env="A_KEY")
        async with ChatClient(where) as client:
            await client.complete(HELLO)

    monkeypatch.setenv("A_KEY", "wrong")
    with ScriptedServer(echo, api_key="right") as server:
        with pytest.raises(EndpointError, match="401"):
            asyncio.run(run(server.base_url, "scripted"))
        monkeypatch.setenv("A_KEY", "right")
        with pytest.raises(EndpointError, match="no model other"):
            asyncio.run(run(server.base_url, "other"))
        assert server.num_requests == 2
        monkeypatch.delenv("A_KEY")
        with pytest.raises(UsageError, match="A_KEY is not set"):
            asyncio.run(run(server.base_url, "scripted"))


def test_nobody_listening_is_a_remote_error() -> None:
    with pytest.raises(RemoteError, match="no connection to 127"):
        asyncio.run(StreamTransport().post("http://127.0.0.1:9/v1", {}, b""))
    with pytest.raises(UsageError, match="no address"):
        asyncio.run(StreamTransport().post("ftp://h/v1", {}, b""))
