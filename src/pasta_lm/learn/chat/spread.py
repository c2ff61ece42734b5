"""Spread chat requests over several servers of the same model: the one with the fewest in flight.

A server that failed rests for a while, so that it does not draw all requests by failing at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pasta_lm.errors import RemoteError
from pasta_lm.learn.chat.chat import Response

if TYPE_CHECKING:
    from pasta_lm.learn.chat.client import Transport

REST_S = 5.0


@dataclass(slots=True)
class _Load:
    transport: Transport
    num_in_flight: int = 0
    rests_until_s: float = 0.0


class SpreadTransport:
    """Several transports as one."""

    def __init__(
        self, transports: Sequence[Transport], clock: Callable[[], float] | None = None
    ) -> None:
        """Take at least one; a clock is given by tests."""
        self._loads = [_Load(one) for one in transports]
        self._clock = clock

    async def post(self, body: Mapping[str, Any]) -> Response:
        """Send a request to one server; the next attempt may go to another one.

        Raises:
            RemoteError: there is no complete answer.
        """
        now_s = (self._clock or asyncio.get_running_loop().time)()
        chosen = min(self._loads, key=lambda one: (one.rests_until_s > now_s, one.num_in_flight))
        chosen.num_in_flight += 1
        try:
            answer = await chosen.transport.post(body)
        except RemoteError:
            chosen.rests_until_s = now_s + REST_S
            raise
        finally:
            chosen.num_in_flight -= 1
        if answer.status >= 500:
            chosen.rests_until_s = now_s + REST_S
        return answer

    async def close(self) -> None:
        """Close all connections."""
        for one in self._loads:
            await one.transport.close()
