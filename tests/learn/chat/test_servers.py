"""Chat requests over several servers, which take turns, and pauses of all requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pasta_lm.engines.servers import request_pace
from pasta_lm.engines.servers.request_pace import HttpReply, Pause
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from tests.learn.chat.test_client import HELLO, OK


class Server:
    def __init__(self) -> None:
        self.num_asked = 0
        self.is_closed = False

    async def send(self, method: str, path: str, body: Mapping[str, Any]) -> HttpReply:
        self.num_asked += 1
        return OK

    async def close(self) -> None:
        self.is_closed = True


def test_servers_take_turns() -> None:
    async def check() -> None:
        servers = [Server(), Server(), Server()]
        async with ChatClient(
            Endpoint(base_url="http://h/v1", model="m"), servers=servers
        ) as client:
            await asyncio.gather(*(client.complete(HELLO) for _ in range(9)))
            assert [one.num_asked for one in servers] == [3, 3, 3]
        assert all(one.is_closed for one in servers)

    asyncio.run(check())


def test_no_request_begins_during_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        seen: list[str] = []

        async def sleep(delay_s: float) -> None:
            for _ in range(int(delay_s)):
                await asyncio.sleep(0)
            seen.append(f"{delay_s} s are over")

        monkeypatch.setattr(request_pace, "sleep", sleep)
        pause = Pause()

        async def one() -> None:
            await pause.over()
            seen.append("began")

        pausing = [asyncio.create_task(pause.wait(delay_s)) for delay_s in (5, 20)]
        await asyncio.sleep(0)
        await asyncio.gather(*pausing, one())
        return seen

    assert asyncio.run(run()) == ["5 s are over", "20 s are over", "began"]
