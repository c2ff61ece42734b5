"""Several servers of one model: which takes the next response, which is lost, which came back.

A server takes responses once it was asked who it is and passed a check. One that is lost is asked
again and again, and passes the check again before it takes another response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from pasta_lm.engines.servers.streaming import Connection, StockServer
from pasta_lm.errors import PastaError, RemoteError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0

Check = Callable[[Connection], Awaitable[None]]
"""Raises an error if a server cannot be used."""


class Cluster:
    """Connections to all servers; belongs to one event loop."""

    def __init__(self, connections: Sequence[Connection], check: Check, max_responses: int) -> None:
        self._connections = connections
        self._check = check
        self._gate = asyncio.Semaphore(max_responses)
        self._watches: dict[Connection, asyncio.Task[None]] = {}

    async def meet(self) -> None:
        """Ask the servers who they are, unless they were asked before; one that is up is enough.

        Raises:
            RemoteError: none can be reached.
            EndpointError: one refuses every request, or does not say of which kind it is.
            PastaError: one fails the check.
        """
        if not any(one.server.is_up for one in self._connections):
            await self._meet_all(None)
        for one in self._connections:
            if not one.server.is_up:
                self._watch(one)

    async def _meet_all(self, max_requests: int | None) -> None:
        asked = (self._ask(one, max_requests) for one in self._connections)
        found = await asyncio.gather(*asked, return_exceptions=True)
        errors = [one for one in found if one is not None]
        refusals = [one for one in errors if not isinstance(one, RemoteError)]
        if refusals or len(errors) == len(self._connections):
            raise (refusals or errors)[0]

    async def _ask(self, connection: Connection, max_requests: int | None) -> None:
        await connection.introduce(max_requests=max_requests)
        await self._check(connection)
        connection.server.is_up = True

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[Connection]:
        """Give a response to the server that has the fewest, while the block lasts.

        Raises:
            RemoteError: all are lost, and none answers now.
            PastaError: as ``meet``.
        """
        async with self._gate:
            if not any(one.server.is_up for one in self._connections):
                await self._meet_all(1)
            up = [one for one in self._connections if one.server.is_up]
            chosen = min(up, key=lambda one: one.server.num_responses)
            chosen.server.num_responses += 1
            try:
                yield chosen
            finally:
                chosen.server.num_responses -= 1

    def lose(self, connection: Connection) -> None:
        """Give a server no more responses until it answers again."""
        connection.server.is_up = False
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        watch = self._watches.get(connection)
        if watch is None or watch.done():
            self._watches[connection] = asyncio.create_task(self._ask_until_up(connection))

    async def _ask_until_up(self, connection: Connection) -> None:
        pause_s = FIRST_PAUSE_S
        while not connection.server.is_up:
            try:
                await self._ask(connection, 1)
            except PastaError:  # also one that came back with another model
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def close(self) -> None:
        """Stop asking lost servers."""
        watches = list(self._watches.values())
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


@asynccontextmanager
async def cluster_of(
    servers: Sequence[StockServer], check: Check, max_responses: int
) -> AsyncIterator[Cluster]:
    """Connect to servers for the running event loop; errors as those of ``Cluster.meet``.

    Args:
        servers: At least one.
        check: What a server must pass.
        max_responses: Responses on all servers together; others wait here.
    """
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(one.connected()) for one in servers]
        cluster = Cluster(opened, check, max_responses)
        try:
            await cluster.meet()
            yield cluster
        finally:
            await cluster.close()
