"""Several servers of one model: least loaded first, lost ones out until they answer again.

A server takes responses once it was introduced and passed a check. A lost one is introduced again
and again, and passes the check again before it takes another response.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from pasta_lm.errors import PastaError, RemoteError

if TYPE_CHECKING:
    from pasta_lm.engines.servers.streaming import Connection, StockServer

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0

Check = Callable[["Connection"], Awaitable[None]]
"""Raises an error if a server cannot be used."""


class ServerLoad(Protocol):
    """The load of a server."""

    num_in_flight: int

    @property
    def is_up(self) -> bool:
        """Return whether the server is preferred to those that are not."""


L = TypeVar("L", bound=ServerLoad)


@contextmanager
def least_loaded(servers: Sequence[L]) -> Iterator[L]:
    """Count a request on the server with the fewest in flight, while the block lasts."""
    chosen = min(servers, key=lambda server: (not server.is_up, server.num_in_flight))
    chosen.num_in_flight += 1
    try:
        yield chosen
    finally:
        chosen.num_in_flight -= 1


class Cluster:
    """Connections to all servers; belongs to one event loop."""

    def __init__(self, connections: Sequence[Connection], check: Check, max_responses: int) -> None:
        self._connections = connections
        self._check = check
        self._gate = asyncio.Semaphore(max_responses)
        self._watches: dict[Connection, asyncio.Task[None]] = {}

    async def meet(self) -> None:
        """Introduce and check the servers unless that was done before; one that is up is enough.

        Raises:
            RemoteError: none can be reached.
            EndpointError: one refuses every request, or its dialect is unknown.
            PastaError: one fails the check.
        """
        if not any(connection.server.is_up for connection in self._connections):
            await self._meet_all(None)
        for connection in self._connections:
            if not connection.server.is_up:
                self._watch(connection)

    async def _meet_all(self, max_requests: int | None) -> None:
        results = await asyncio.gather(
            *(self._introduce(connection, max_requests) for connection in self._connections),
            return_exceptions=True,
        )
        errors = [error for error in results if error is not None]
        refusals = [error for error in errors if not isinstance(error, RemoteError)]
        if refusals or len(errors) == len(self._connections):
            raise (refusals or errors)[0]

    async def _introduce(self, connection: Connection, max_requests: int | None) -> None:
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
            if not any(connection.server.is_up for connection in self._connections):
                await self._meet_all(1)
            with least_loaded([connection.server for connection in self._connections]) as server:
                yield next(c for c in self._connections if c.server is server)

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
                await self._introduce(connection, 1)
            except PastaError:  # also one that came back with another model
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

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
    """Connect to servers for the running event loop; errors as those of ``Cluster.meet``."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(server.connected()) for server in servers]
        cluster = Cluster(opened, check, max_responses)
        try:
            await cluster.meet()
            yield cluster
        finally:
            await cluster.close()
