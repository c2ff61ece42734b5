"""Servers for the tests, an ASGI client, and uvicorn on loopback in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.language import parse
from pasta_lm.serve import Queue, ServeRecipe
from pasta_lm.serve.app import Server, create_app
from tests.fakes.scripted_backend import HeldBackend, PoisonedEngine, ScriptedBackend

SCRIPT = (
    "Three ways, caf\u00e9 \U0001f35d:\n"
    '<async topic="walk"> Walk every single day in the morning sun.</async>'
    '<async topic="sleep"> Sleep < 9 hours.</async>\n'
    '<async topic="eat"> Eat <b>greens</b> &amp; nuts, often, with <friends>.</async>'
    "<sync/> That is all."
)
DOCUMENT = parse(SCRIPT, "annotator")
TEXT = DOCUMENT.plain_text
LIMIT_S = 12  # longest wait for what needs less than a second on a quiet machine
CHAT = {"messages": [{"role": "user", "content": "How do I live well?"}]}


def scripted(**settings: Any) -> ScriptedBackend:
    return ScriptedBackend(ScriptedEngine(DOCUMENT), **settings)


def held(**settings: Any) -> HeldBackend:
    return HeldBackend(DOCUMENT, **settings)


def poisoned(prompt: str, num_good_steps: int) -> ScriptedBackend:
    return ScriptedBackend(PoisonedEngine(DOCUMENT, prompt, num_good_steps))


def recipe(**queue: Any) -> ServeRecipe:
    return ServeRecipe(queue=Queue(**queue))


async def settle(is_true: Callable[[], object]) -> None:
    """Wait until something is true; ``run`` ends a test that waits for ever."""
    while not is_true():
        await asyncio.sleep(0.005)


def is_idle(app: FastAPI) -> bool:
    engine = app.state.service.engine
    load = engine.load
    is_empty = not engine.backend.has_work and not load.get("num_orphan_threads")
    return is_empty and load["num_requests_running"] == load["num_requests_waiting"] == 0


@asynccontextmanager
async def client_of(app: FastAPI, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", **settings
        ) as client:
            yield client


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine; a test that hangs fails.

    It runs in a thread of its own: an open browser keeps an event loop in the test's.
    """
    with ThreadPoolExecutor(1) as one:
        return one.submit(asyncio.run, asyncio.wait_for(work, 600)).result()


def scenario(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(work)
    def test(*arguments: Any, **named: Any) -> None:
        run(work(*arguments, **named))

    return test


def ask(method: str, path: str, *, app: FastAPI | None = None, **request: Any) -> httpx.Response:
    async def reply() -> httpx.Response:
        async with client_of(app or create_app(scripted())) as client:
            return await client.request(method, path, **request)

    response: httpx.Response = run(reply())
    return response


def post(path: str, body: Any, *, app: FastAPI | None = None) -> httpx.Response:
    return ask("POST", path, app=app, json=body)


def streamed(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the objects of a stream, whose last line must be ``[DONE]``."""
    text = response.read().decode()
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def text_of(pieces: list[dict[str, Any]], sample: int = 0) -> str:
    choices = [one for piece in pieces for one in piece["choices"] if one["index"] == sample]
    texts = (one["delta"].get("content") if "delta" in one else one["text"] for one in choices)
    return "".join(text or "" for text in texts)


@contextmanager
def serving(app: FastAPI) -> Iterator[tuple[Server, str]]:
    """Run uvicorn on a free port of loopback, and yield it with its address."""
    server = Server(app)
    place = socket.create_server(("127.0.0.1", 0))
    port = place.getsockname()[1]
    started = threading.Event()

    async def serve() -> None:
        server.loop = asyncio.get_running_loop()  # type: ignore[attr-defined]

        async def notice() -> None:
            while not server.started:
                await asyncio.sleep(0.01)
            started.set()

        noticing = asyncio.ensure_future(notice())
        await server._serve([place])  # without signal handlers, which threads may not set
        await noticing

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(LIMIT_S)
    try:
        yield server, f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Return what waits until something is true; a test that waits for ever fails."""

    def wait(is_true: Callable[[], bool]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not is_true():
            assert time.monotonic() < end_s, "it never became true"
            time.sleep(0.01)

    return wait
