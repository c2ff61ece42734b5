"""The servers of one endpoint: a request goes to the least loaded, and one that failed rests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pasta_lm.engines.servers.cluster import least_loaded
from pasta_lm.engines.servers.request_pace import HttpReply, TemporaryFailure

PATH = "/chat/completions"
REST_S = 5.0
"""So that a server does not draw all requests by failing at once."""


class Client(Protocol):
    """Connections to one server, such as ``engines.servers.client.HttpClient``."""

    async def send(self, method: str, path: str, body: Mapping[str, Any]) -> HttpReply:
        """Send a request; a ``TemporaryFailure`` if there is no complete reply."""

    async def close(self) -> None:
        """Close all connections."""


class ChatServer:
    """One server and its load."""

    def __init__(self, client: Client, now_s: Callable[[], float]) -> None:
        """Begin without load."""
        self.client = client
        self.num_in_flight = 0
        self.rests_until_s = 0.0
        self._now_s = now_s

    @property
    def is_up(self) -> bool:
        """Return whether the server does not rest."""
        return self.rests_until_s <= self._now_s()


class ChatServers:
    """Several servers of one model as one transport."""

    def __init__(
        self, clients: Sequence[Client], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Take at least one client."""
        self._servers = [ChatServer(client, now_s) for client in clients]
        self._now_s = now_s

    async def post(self, body: Mapping[str, Any]) -> HttpReply:
        """Send a request to one server; the next attempt may go to another one.

        Raises:
            TemporaryFailure: there is no complete reply.
        """
        with least_loaded(self._servers) as server:
            rests_until_s = self._now_s() + REST_S
            try:
                reply = await server.client.send("POST", PATH, body)
            except TemporaryFailure:
                server.rests_until_s = rests_until_s
                raise
            if reply.status >= 500:
                server.rests_until_s = rests_until_s
            return reply

    async def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            await server.client.close()
