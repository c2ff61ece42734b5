"""Send one HTTP request and read the whole answer: httpx where it is installed, asyncio otherwise.

httpx keeps connections open and obeys the proxies of the environment; the other needs nothing but
the standard library and opens a connection for each request. Neither retries anything.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import ssl
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from pasta_lm.errors import RemoteError, UsageError

MAX_REPLY_BYTES = 64 * 2**20
"""No chat reply is longer; what is, is not kept in memory."""


class Response(NamedTuple):
    """What came back; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """Something that can post."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send a request and return the whole answer, whatever its status.

        The caller bounds the time.

        Raises:
            RemoteError: no connection, or it broke before the answer was whole.
        """
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


def default_transport() -> Transport:
    """Return the transport of httpx if that is installed, or else that of the standard library."""
    return HttpxTransport() if find_spec("httpx") else StreamTransport()


class StreamTransport:
    """One asyncio connection a request; ``http.client`` reads the answer."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send a request and return the whole answer."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url} is no address", hint="for example http://localhost:8000/v1")
        context = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if context else 80)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        try:
            reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
        except (OSError, ssl.SSLError) as exc:
            raise RemoteError(f"no connection to {parts.hostname}:{port}: {exc}") from exc
        try:
            writer.write(_head(path, parts.netloc.rpartition("@")[2], headers, len(body)) + body)
            await writer.drain()
            return _read(await _whole(reader))
        except (OSError, ssl.SSLError, http.client.HTTPException) as exc:
            raise RemoteError(f"{parts.hostname}:{port} broke off: {exc!r}") from exc
        finally:
            writer.close()

    async def close(self) -> None:
        """Close nothing: every connection ended with its request."""


class HttpxTransport:
    """A pool of connections of httpx."""

    def __init__(self) -> None:
        """Open no connection yet."""
        import httpx

        self._error = httpx.HTTPError
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(timeout=None, limits=limits)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Send a request and return the whole answer."""
        try:
            answer = await self._client.post(url, headers=dict(headers), content=body)
        except self._error as exc:
            raise RemoteError(f"no answer from {url}: {exc!r}") from exc
        found = {name.lower(): value for name, value in answer.headers.items()}
        return Response(answer.status_code, found, answer.content)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _head(path: str, host: str, headers: Mapping[str, str], num_bytes: int) -> bytes:
    fixed = {"Host": host, "Connection": "close", "Content-Length": str(num_bytes)}
    lines = [f"{name}: {value}" for name, value in {**headers, **fixed}.items()]
    return "\r\n".join([f"POST {path or '/'} HTTP/1.1", *lines, "", ""]).encode("latin-1")


async def _whole(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes, as it was asked to, or until the announced length is there."""
    found = bytearray()
    wanted: int | None = None
    while wanted is None or len(found) < wanted:
        piece = await reader.read(65536)
        if not piece:
            break
        found += piece
        if len(found) > MAX_REPLY_BYTES:
            raise http.client.HTTPException(f"more than {MAX_REPLY_BYTES} bytes")
        if wanted is None:
            wanted = _announced(found)
    return bytes(found)


def _announced(found: bytearray) -> int | None:
    """Return how long an answer will be with its head, if its head is there and says so."""
    end = found.find(b"\r\n\r\n")
    if end < 0:
        return None
    for line in bytes(found[:end]).split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return end + 4 + int(value)
    return None


class _Received:
    """What ``http.client`` takes for a socket: an answer that is all there."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _read(data: bytes) -> Response:
    answer = http.client.HTTPResponse(_Received(data))  # type: ignore[arg-type]
    answer.begin()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return Response(answer.status, headers, answer.read())
