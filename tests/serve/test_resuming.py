"""Streams of events that are taken up again by ``Last-Event-ID``, on a connection of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from pasta_lm.serve.app import create_app
from pasta_lm.serve.resuming import Recording
from tests.serve.conftest import CHAT, TEXT, client_of, run, scripted, streamed, text_of
from tests.serve.test_failures import PATH, Held, is_idle, recipe, settle

STREAM = {**CHAT, "stream": True, "pasta": {"stream": "events", "resumable": True}}


async def resumed(client: httpx.AsyncClient, name: str, last: Any = None) -> httpx.Response:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    return await client.get(f"/v1/events/{name}", headers=headers)


def assert_error(reply: httpx.Response, status: int, code: str) -> None:
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_goes_on_behind_whichever_event_the_client_has(n: int) -> None:
    async def resume_everywhere() -> None:
        async with client_of(create_app(scripted())) as client:
            whole = (await client.post(PATH, json={**STREAM, "n": n})).text
            name = streamed_name(whole)
            events = [f"{event}\n\n" for event in whole.split("\n\n")[:-1]]
            ids = [int(e.split("\n")[0][4:]) for e in events if e.startswith("id: ")]
            assert ids == list(range(1, len(ids) + 1))
            assert (await resumed(client, name)).text == whole
            assert (await resumed(client, name, 0)).text == whole
            for last in ids:
                (place,) = [i for i, e in enumerate(events) if e.startswith(f"id: {last}\n")]
                assert (await resumed(client, name, last)).text == "".join(events[place + 1 :])

    run(resume_everywhere())


def streamed_name(text: str) -> str:
    """Return the id of the response that a stream is."""
    return text.partition('"id":"')[2].partition('"')[0]


def names(app: Any) -> list[str]:
    return list(app.state.service._recordings._recordings)


async def left(app: Any, client: httpx.AsyncClient) -> str:
    """Begin a stream, go away, and return its id."""
    asked = asyncio.ensure_future(client.post(PATH, json=STREAM))
    await settle(lambda: names(app))
    (name,) = names(app)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    return name


def test_a_response_goes_on_without_its_reader_and_has_several_later() -> None:
    async def come_back() -> None:
        backend = Held()
        app = create_app(backend)
        async with client_of(app) as client:
            name = await left(app, client)
            readers = [asyncio.ensure_future(resumed(client, name)) for _ in range(2)]
            await asyncio.sleep(0.05)
            backend.may_step.set()
            for reply in await asyncio.gather(*readers):
                assert text_of(streamed(reply)) == TEXT
            tail = (await resumed(client, name, 3)).text
            assert tail.startswith("id: 4\n")
            assert tail.endswith("data: [DONE]\n\n")
            assert is_idle(app) or await settle(lambda: is_idle(app)) is None

    run(come_back())


def test_without_a_reader_a_response_is_ended_and_forgotten_after_a_while() -> None:
    async def stay_away() -> None:
        app = create_app(Held(), recipe(resume_s=0.05))
        async with client_of(app) as client:
            name = await left(app, client)
            await settle(lambda: is_idle(app) and not names(app))
            assert_error(await resumed(client, name, 1), 404, "unknown_response")

    run(stay_away())


def test_a_failure_reaches_the_client_that_comes_back() -> None:
    async def fail() -> None:
        backend = Held()
        app = create_app(backend)
        async with client_of(app) as client:
            name = await left(app, client)
            backend.error = ValueError("a secret detail")
            reply = await resumed(client, name)
            assert streamed(reply)[-1]["error"]["code"] == "engine_error"
            assert "secret" not in reply.text

    run(fail())


@pytest.mark.parametrize("last", ["-1", "9999", "x", "", "1.5", "9" * 5000, "\u00b2".encode()])
def test_an_event_that_never_was_is_400(last: Any) -> None:
    async def ask_for_it() -> None:
        async with client_of(create_app(scripted())) as client:
            name = streamed_name((await client.post(PATH, json=STREAM)).text)
            reply = await client.get(f"/v1/events/{name}", headers={"Last-Event-ID": last})
            assert_error(reply, 400, "unknown_event")

    run(ask_for_it())


def test_an_event_that_is_no_longer_kept_is_410() -> None:
    async def ask_for_it() -> None:
        async with client_of(create_app(scripted(), recipe(resume_bytes=4000))) as client:
            whole = (await client.post(PATH, json=STREAM)).text
            name = streamed_name(whole)
            statuses = []
            for last in range(1, whole.count("id: ") + 1):
                reply = await resumed(client, name, last)
                statuses.append(reply.status_code)
                if reply.status_code == 200:
                    assert whole.endswith(reply.text)
                else:
                    assert_error(reply, 410, "event_expired")
            assert statuses == sorted(statuses, reverse=True)
            assert set(statuses) == {200, 410}
            assert_error(await resumed(client, name), 410, "event_expired")

    run(ask_for_it())


@pytest.mark.parametrize("options", [{}, {"stream": "events"}])
def test_a_stream_is_resumable_only_on_request(options: dict[str, Any]) -> None:
    async def ask_for_it() -> None:
        async with client_of(create_app(scripted())) as client:
            whole = await client.post(PATH, json={**CHAT, "stream": True, "pasta": options})
            reply = await resumed(client, streamed(whole)[0]["id"], 1)
            assert_error(reply, 404, "unknown_response")

    run(ask_for_it())


def test_a_reader_that_falls_behind_what_is_kept_is_told_so() -> None:
    async def fall_behind() -> list[str]:
        async def texts() -> AsyncIterator[str]:
            for number in range(1, 100):
                yield f"id: {number}\ndata: {{}}\n\n"
                await asyncio.sleep(0)

        has_ended = asyncio.Event()
        recording = Recording(texts(), max_bytes=100, close=has_ended.set)
        reader = recording.read(recording.place_after(None))
        found = [await anext(reader)]
        await has_ended.wait()
        return [*found, *[text async for text in reader]]

    assert "slow_reader" in run(fall_behind())[-1]
