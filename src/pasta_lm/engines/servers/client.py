"""The HTTP client of chat and completions: connections to one server; nothing is retried here.

Importing this file needs the extra ``data``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2 as httpx

from pasta_lm.engines.servers.request_pace import (
    HttpReply,
    TemporaryFailure,
    check_address,
    raise_for_status,
    without_password,
)

MAX_REPLY_BYTES = 64 * 2**20
"""A longer reply is not kept in memory."""
CONNECT_S = 5.0


class HttpClient:
    """Connections to one server; ignores proxies and keys of the environment.

    Attributes:
        address: The URL without a password, for messages.
    """

    def __init__(self, url: str, api_key: str | None, timeout_s: float | None = None) -> None:
        """Prepare to connect; a UsageError if the URL is not an HTTP address.

        Args:
            url: The part that all paths share.
            api_key: Sent as a bearer token.
            timeout_s: Until the first part of a reply, and between two; None: the caller has one.
        """
        check_address(url)
        self.address = without_password(url)
        self._url = url.rstrip("/")
        timeout = timeout_s and httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None)
        self._client = httpx.AsyncClient(
            timeout=timeout,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
            verify=url.startswith("https"),  # reading certificates takes a while
        )
        del self._client.headers["User-Agent"]
        if api_key is not None:
            self._client.headers["Authorization"] = f"Bearer {api_key}"

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> HttpReply:
        """Send a request and return the whole reply, whatever its status.

        Raises:
            TemporaryFailure: no connection, or it broke before the reply was complete.
        """
        with self._broken():
            async with self._client.stream(method, f"{self._url}{path}", json=body) as reply:
                return await _whole(reply)

    @asynccontextmanager
    async def lines(
        self, path: str, body: Mapping[str, Any], advice: Mapping[int, str]
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Post a request and give the lines of its reply as they come.

        Raises:
            TemporaryFailure: as ``send``, also while the lines are read.
            PastaError: the status is an error, see ``raise_for_status``.
        """
        with self._broken():
            async with self._client.stream("POST", f"{self._url}{path}", json=body) as reply:
                if not reply.is_success:
                    raise_for_status(await _whole(reply), self.address, advice=advice)
                yield reply.aiter_lines()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @staticmethod
    @contextmanager
    def _broken() -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError) as exc:
            raise TemporaryFailure(f"no connection, or it broke: {exc!r}") from exc


async def _whole(reply: httpx.Response) -> HttpReply:
    data = bytearray()
    async for piece in reply.aiter_bytes():
        data += piece
        if len(data) > MAX_REPLY_BYTES:
            raise TemporaryFailure(f"the reply has more than {MAX_REPLY_BYTES} bytes")
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return HttpReply(reply.status_code, headers, bytes(data))
