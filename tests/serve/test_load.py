"""Many streams at once, clients that go away at any moment, and thousands of requests."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pasta_lm.serve import Queue, ServeRecipe
from pasta_lm.serve.app import create_app
from pasta_lm.serve.jobs import Metrics
from tests.serve.conftest import LIMIT_S, run, serving, text_of
from tests.serve.conftest import streamed as pieces_of
from tests.serve.load import CHAT_PATH, EVENTS, ByPrompt, chat, go_away, held, script_of

Until = Callable[[Callable[[], bool]], None]
NUM_BLOCKS = 7  # with main, eight threads


def client_of(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits(max_connections=None))


def assert_is_own(reply: httpx.Response, name: str) -> None:
    """Check that a stream is complete and that each of its threads is its own."""
    pieces, script = pieces_of(reply), script_of(name, NUM_BLOCKS)
    assert text_of(pieces) == script.plain_text
    threads: defaultdict[int, str] = defaultdict(str)
    facts = [piece["pasta"] for piece in pieces if "kind" in piece.get("pasta", {})]
    for one in facts:
        threads[one["thread"]] += one["delta"]
    if facts:
        texts = [threads[number] for number in range(1, NUM_BLOCKS + 1)]
        assert texts == ["".join(item.text for item in block.items) for block in script.blocks]
    assert [one["finish_reason"] for one in pieces[-1]["choices"]] == ["stop"]


@pytest.mark.parametrize("num_streams", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_many_streams_of_eight_threads_are_never_mixed(num_streams: int, until: Until) -> None:
    backend = ByPrompt(NUM_BLOCKS)
    app = create_app(backend)
    engine = app.state.service.engine

    async def ask_all(url: str) -> None:
        async with client_of(url) as client:

            async def one(number: int) -> None:
                options = {"pasta": EVENTS} if number % 2 else {}
                body = chat(f"n{number}", stream=True, **options)
                assert_is_own(await client.post(CHAT_PATH, json=body), f"n{number}")

            asked = asyncio.gather(*(one(number) for number in range(num_streams)))
            while engine.load["num_requests_running"] < num_streams:
                await asyncio.sleep(0.01)
            backend.may_step.set()  # all of them run at once
            await asked

    with serving(app) as (server, url):
        before = held()
        run(ask_all(url))
        until(lambda: not engine.backend.has_work and engine.load["num_requests_running"] == 0)
        until(lambda: not server.server_state.tasks)
        until(lambda: not held() - before)


def test_three_hundred_clients_that_go_away_leave_nothing_and_disturb_nobody(
    until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(19)
    backend = ByPrompt(NUM_BLOCKS, pace_s=0.001)
    backend.may_step.set()
    app = create_app(backend, ServeRecipe(queue=Queue()))
    service = app.state.service

    async def ask_all(url: str) -> int:
        num_served, gone = 0, asyncio.Event()
        async with client_of(url) as client:

            async def stay(number: int) -> None:
                nonlocal num_served
                while not gone.is_set():
                    name = f"stays{number}"
                    reply = await client.post(CHAT_PATH, json=chat(name, stream=True))
                    assert_is_own(reply, name)
                    num_served += 1

            staying = [asyncio.ensure_future(stay(number)) for number in range(4)]
            for _ in range(15):
                await asyncio.gather(*(go_away(url, rng) for _ in range(20)))
            gone.set()
            await asyncio.gather(*staying)
        return num_served

    with caplog.at_level(logging.WARNING), serving(app) as (server, url):
        # Then the threads that encode are there.
        httpx.post(f"{url}{CHAT_PATH}", json=chat("first", stream=True), timeout=LIMIT_S)
        before, num_tasks = held(), len(asyncio.all_tasks(server.loop))
        assert run(ask_all(url)) >= 4
        until(lambda: not (backend.has_work))
        until(lambda: not (server.server_state.connections or server.server_state.tasks))
        until(lambda: not any(service.engine.load.values()))
        until(lambda: not held() - before)
        until(lambda: len(asyncio.all_tasks(server.loop)) <= num_tasks)
    errors = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert not errors


DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "docs" / "grafana.json").read_text(encoding="utf-8")
)
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}


def texts(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [text for part in parts for text in texts(part)]
    return [value] if isinstance(value, str) else []


def test_the_dashboard_shows_every_metric_of_the_server_and_no_other() -> None:
    metrics = text_string_to_metric_families(Metrics("model", dict).text().decode())
    series = [
        {one.name + suffix for suffix in SUFFIXES[one.type]}
        for one in metrics
        if not one.name.endswith("_created")
    ]
    shown = {name for text in texts(DASHBOARD) for name in re.findall(r"pasta:\w+", text)}
    assert shown
    assert shown <= set().union(*series)
    assert all(shown & names for names in series)
