"""HTTP clients of model servers: requests, the meaning of statuses, when a failure is retried.

A client needs the extra ``data``; the other names do without.
"""

from __future__ import annotations

import json
from asyncio import Event, sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isnan
from random import uniform
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pasta_lm.engines.servers.dialects import KEY_ENV, Json
from pasta_lm.errors import EndpointError, RemoteError, RequestError, UsageError
from pasta_lm.recipe import without_passwords

if TYPE_CHECKING:
    import httpx2 as httpx

MAX_REPLY_BYTES = 64 * 2**20  # a longer reply is not kept in memory
CONNECT_S = 5.0
T = TypeVar("T")


class Pause:
    """A delay in which no request begins; belongs to one event loop."""

    def __init__(self) -> None:
        self._num_waits = 0
        self._over = Event()
        self._over.set()

    async def over(self) -> None:
        await self._over.wait()

    async def wait(self, delay_s: float) -> None:
        """Let no request begin for a while: ``Retry-After`` holds for all requests."""
        self._num_waits += 1
        self._over.clear()
        try:
            await sleep(delay_s)
        finally:
            self._num_waits -= 1
            if not self._num_waits:
                self._over.set()


ADVICE: Mapping[int, str] = {
    401: "the key is missing or wrong: set the environment variable that 'api_key_env' names",
    402: "the account has no credit",
    403: "the key may not use this model",
    404: "no such model or path: check 'base_url' (it ends in /v1) and 'model'",
}
SERVER_ADVICE: Mapping[int, str] = {
    **ADVICE,
    401: f"its key is missing or wrong: set the environment variable {KEY_ENV}",
    404: "it has no such page or model: check the address and the dialect",
}
OUT_OF_CREDIT = "insufficient_quota"  # error code of a 429 that is permanent


class HttpReply(NamedTuple):
    """A whole answer; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class TemporaryFailure(Exception):
    """A request that may succeed if it is sent again."""

    def __init__(
        self, reason: str, retry_after_s: float | None = None, *, is_too_fast: bool = False
    ) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.is_too_fast = is_too_fast


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of requests for one reply, and the delays between them in seconds."""

    max_requests: int = 8
    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    max_retry_after_s: float = 600.0  # if a server asks for a longer delay, the request fails
    max_busy_s: float = 0.0  # for so long a 429 counts as no failure

    def delay_s(self, num_failed: int) -> float:
        """Return a random delay between 0 and a bound that doubles with each failure.

        Full jitter: requests that failed together are not retried together.
        """
        return uniform(0, min(self.max_delay_s, self.first_delay_s * 2.0 ** (num_failed - 1)))


class Attempts:
    """The failed attempts of one request, and the waits between them."""

    def __init__(self, address: str, pause: Pause, policy: RetryPolicy) -> None:
        self._address, self._pause, self._policy = address, pause, policy
        self._busy_until_s = monotonic() + policy.max_busy_s
        self._num_sent = self._num_failed = 0

    async def reply(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send a request, again after each temporary failure; errors as those of ``wait``."""
        while True:
            await self._pause.over()
            try:
                return await send()
            except TemporaryFailure as failure:
                await self.wait(failure)

    async def wait(self, failure: TemporaryFailure) -> None:
        """Wait before the next attempt: as long as the server asks, then a random time.

        A RemoteError if there is none left, or the server asks for too long a delay.
        """
        self._num_sent += 1
        wanted_s, delay_s = failure.retry_after_s or 0.0, self._policy.delay_s(self._num_sent)
        if is_busy := failure.is_too_fast and self._policy.max_busy_s > 0:
            is_last = monotonic() + wanted_s + delay_s >= self._busy_until_s
        else:
            self._num_failed += 1
            is_last = self._num_failed >= self._policy.max_requests
        if is_last:
            times = f"{self._num_sent} request{'s' if self._num_sent > 1 else ''}"
            raise RemoteError(f"{self._address}: no answer after {times}, the last: {failure}")
        if wanted_s > self._policy.max_retry_after_s and not is_busy:
            raise RemoteError(f"{self._address} asks to wait {wanted_s:.0f} s: {failure}")
        if wanted_s:
            await self._pause.wait(wanted_s)
        await sleep(delay_s)


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that ``Retry-After`` asks for; None if it is absent or unreadable."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        aware = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (aware - (now or datetime.now(UTC))).total_seconds()
    return None if isnan(seconds) else max(0.0, seconds)


def raise_for_status(
    reply: HttpReply, address: str, what: str = "", advice: Mapping[int, str] = ADVICE
) -> None:
    """Raise the error of a reply's status: no request, or not this one, or not yet, can succeed."""
    if 200 <= reply.status < 300:
        return
    code, message = _error_of(reply.body)
    reason = f"HTTP {reply.status}: {message}"
    if code == OUT_OF_CREDIT or reply.status in ADVICE:
        hint = advice[402 if code == OUT_OF_CREDIT else reply.status]
        raise EndpointError(f"{address} refuses {what or 'all requests'}: {reason}", hint=hint)
    is_too_fast = reply.status == 429
    if is_too_fast or reply.status in (408, 409) or reply.status >= 500:
        raise TemporaryFailure(reason, retry_after(reply.headers), is_too_fast=is_too_fast)
    raise RequestError(f"{address} refuses the request: {reason}")


def _error_of(body: bytes) -> tuple[str, str]:
    code, message = "", body[:200].decode(errors="replace")
    with suppress(ValueError, AttributeError):
        data = json.loads(body)
        error = data.get("error", data)
        if isinstance(error, dict):
            code, message = str(error.get("code") or ""), str(error.get("message") or message)
        else:
            message = str(error)
    return code, " ".join(message.split())[:200]


class HttpClient:
    """HTTP to one server, without retries; ignores proxies and keys of the environment."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float | None = None) -> None:
        """Prepare to connect; a UsageError if the URL is not an HTTP address.

        ``timeout_s`` bounds the time until a reply begins, and between two pieces of it.
        """
        import httpx2 as httpx  # not installed where no server is asked

        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # the port is not a number, or a bracket is missing
            is_address = False
        if not is_address:
            hint = "for example http://localhost:8000/v1"
            raise UsageError(f"{without_passwords(url)} is not an address", hint=hint)
        self._url = url.rstrip("/")
        self._errors = (httpx.HTTPError, httpx.StreamError)
        self._client = httpx.AsyncClient(
            timeout=timeout_s and httpx.Timeout(timeout_s, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
            verify=url.startswith("https"),  # reading certificates takes a while
        )
        del self._client.headers["User-Agent"]
        if api_key is not None:
            self._client.headers["Authorization"] = f"Bearer {api_key}"

    async def send(self, method: str, path: str, body: Json | None = None) -> HttpReply:
        async with self.replying(method, path, body) as reply:
            return await read_whole(reply)

    @asynccontextmanager
    async def replying(
        self, method: str, path: str, body: Json | None
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and give its reply to be read; a TemporaryFailure if that breaks."""
        try:
            async with self._client.stream(method, f"{self._url}{path}", json=body) as reply:
                yield reply
        except self._errors as exc:
            raise TemporaryFailure(f"no connection, or it broke: {exc!r}") from exc

    async def close(self) -> None:
        await self._client.aclose()


async def read_whole(reply: httpx.Response) -> HttpReply:
    data = bytearray()
    async for piece in reply.aiter_bytes():
        data += piece
        if len(data) > MAX_REPLY_BYTES:
            raise TemporaryFailure(f"the reply has more than {MAX_REPLY_BYTES} bytes")
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return HttpReply(reply.status_code, headers, bytes(data))
