"""Chat requests over several servers: the one with the fewest, and rest for one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pasta_lm.engines.servers.request_pace import HttpReply, TemporaryFailure
from pasta_lm.learn.chat.client import REST_S, ChatServers


class Server:
    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.num_asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_closed = False

    async def send(self, method: str, path: str, body: Mapping[str, Any]) -> HttpReply:
        self.num_asked += 1
        await self.gate.wait()
        if not self.status:
            raise TemporaryFailure("it is gone")
        return HttpReply(self.status, {}, b"")

    async def close(self) -> None:
        self.is_closed = True


def test_requests_go_where_the_fewest_are_in_flight() -> None:
    async def check() -> None:
        servers = [Server(), Server(), Server()]
        for one in servers:
            one.gate.clear()
        spread = ChatServers(servers)
        asking = [asyncio.ensure_future(spread.post({})) for _ in range(9)]
        await asyncio.sleep(0)
        assert [one.num_asked for one in servers] == [3, 3, 3]
        for one in servers:
            one.gate.set()
        await asyncio.gather(*asking)
        await spread.close()
        assert all(one.is_closed for one in servers)

    asyncio.run(check())


@pytest.mark.parametrize("status", [0, 503])
def test_a_server_that_fails_rests_and_is_asked_again(status: int) -> None:
    now_s = 0.0

    async def check() -> None:
        nonlocal now_s
        bad, good = Server(status), Server()
        spread = ChatServers([bad, good], lambda: now_s)
        for _ in range(5):
            try:
                await spread.post({})
            except TemporaryFailure:
                assert status == 0
        assert (bad.num_asked, good.num_asked) == (1, 4)
        now_s, bad.status = REST_S, 200
        await spread.post({})
        assert bad.num_asked == 2

    asyncio.run(check())
