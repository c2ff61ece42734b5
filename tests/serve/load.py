"""Many clients at once: answers that name their prompt, hasty clients, and what a server holds."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
import struct
from collections import Counter
from contextlib import suppress
from typing import Any

from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.engines.response import Response
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.language import parse
from pasta_lm.language.document import Document
from pasta_lm.serve.backends import Events
from pasta_lm.serve.jobs import Job, ResponseStream
from pasta_lm.serve.protocol import ClientPrompt
from pasta_lm.serve.replies import Reply
from pasta_lm.serve.service import EventStream
from tests.fakes.scripted_backend import HeldBackend

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
HELD_BY_A_REQUEST = (ResponseStream, Reply, EventStream, Job, Response, LiveThread)


def script_of(name: str, num_blocks: int) -> Document:
    """Return an answer of which every word names its prompt and its place."""
    blocks = "".join(
        f'<async topic="part {part}"> {name}/{part}/a {name}/{part}/b\u00e9\U0001f35d '
        f"{name}/{part}/c</async>"
        for part in range(num_blocks)
    )
    return parse(f"{name} begins:{blocks}<sync/> {name} ends.", "annotator")


class ByPrompt(HeldBackend):
    """A backend whose answer is made of the prompt's last word; it steps when it may."""

    def __init__(self, num_blocks: int, *, pace_s: float = 0.0) -> None:
        super().__init__(script_of("x", 1), capacity=1000)
        self.num_blocks = num_blocks
        self.pace_s = pace_s
        self._engines: dict[tuple[int, ...], ScriptedEngine] = {}

    def prepare(self, prompt: ClientPrompt, params: SamplingParams) -> Request:
        request = super().prepare(prompt, params)
        content = prompt.content
        text = content if isinstance(content, str) else str(content[-1]["content"])  # type: ignore[index]
        engine = ScriptedEngine(script_of(text.split()[-1], self.num_blocks))
        self._engines.setdefault(tuple(request.prompt), engine)
        return request

    def submit(self, request: Request) -> int:
        number = next(self._numbers)
        self._running[number] = self._engines[tuple(request.prompt)].steps(request)
        return number

    async def step(self) -> Events:
        await asyncio.sleep(self.pace_s)
        return await super().step()


def chat(name: str, **changes: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"ask {name}"}], **changes}


EVENTS = {"stream": "events"}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT_PATH, {"stream": True}),
    (CHAT_PATH, {"stream": True, "n": 3}),
    (CHAT_PATH, {"stream": True, "pasta": EVENTS}),
    (CHAT_PATH, {}),
    (TEXT_PATH, {"stream": True}),
    (TEXT_PATH, {}),
]


async def go_away(url: str, rng: random.Random) -> None:
    """Send a request or a part of it, read some of the reply or nothing, and hang up."""
    path, body = rng.choice(BODIES)
    name = f"hasty{rng.randrange(100)}"
    prompt = {"prompt": [f"ask {name}", f"ask {name}b"]} if path == TEXT_PATH else chat(name)
    data = json.dumps({**prompt, **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    whole = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(whole[: int(rng.choice([1.0, 1.0, 1.0, rng.random()]) * len(whole))])
        await writer.drain()
        with suppress(TimeoutError, asyncio.IncompleteReadError):
            num = rng.choice([0, 0, rng.randrange(1, 6000)])
            await asyncio.wait_for(reader.readexactly(num), 0.3)
        await asyncio.sleep(rng.choice([0.0, rng.random() * 0.05, rng.random() * 0.3]))
    finally:
        if rng.random() < 0.5:  # with a reset instead of an orderly end
            line = writer.get_extra_info("socket")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def held() -> Counter[str]:
    """Return the objects of requests that this process holds, by class."""
    gc.collect()
    objects = gc.get_objects()
    return Counter(type(each).__name__ for each in objects if isinstance(each, HELD_BY_A_REQUEST))
