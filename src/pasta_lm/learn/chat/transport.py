"""Send one chat request with openai's client and return the whole answer, whatever its status.

Nothing is retried here: ``client.py`` decides that. Importing this file needs the extra ``data``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2 as httpx
import openai

from pasta_lm.errors import RemoteError, UsageError
from pasta_lm.learn.chat.chat import Response

if TYPE_CHECKING:
    from pasta_lm.learn.chat.client import Endpoint

MAX_REPLY_BYTES = 64 * 2**20
"""No chat reply is longer; a longer one is not kept in memory."""
SENT_HEADERS = frozenset(
    {"accept", "accept-encoding", "connection", "content-length", "content-type", "host"}
    | {"x-stainless-raw-response"}  # openai's client reads it from the request
)
"""Besides the key. openai's client adds others, some of them from environment variables."""


class Transport:
    """A pool of connections to one endpoint; ignores proxies and keys of the environment."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Read the key; no connection is opened yet.

        Raises:
            UsageError: the URL is not an HTTP address, or the key is missing.
        """
        self._url = endpoint.base_url
        check_address(self._url)
        self._key = endpoint.api_key()
        hooks = {"request": [self._set_headers]}
        http_client = openai.DefaultAsyncHttpxClient(
            timeout=None, trust_env=False, follow_redirects=False, event_hooks=hooks
        )
        self._api = openai.AsyncOpenAI(
            base_url=self._url, api_key=self._key or "none", max_retries=0, http_client=http_client
        )

    async def post(self, body: Mapping[str, Any]) -> Response:
        """Send a request and return the whole answer; the caller bounds the time.

        Raises:
            RemoteError: no connection, or it broke before the answer was complete.
        """
        create = self._api.chat.completions.with_streaming_response.create
        try:
            async with create(**body) as answer:
                found = bytearray()
                async for piece in answer.iter_bytes():
                    found += piece
                    if len(found) > MAX_REPLY_BYTES:
                        raise RemoteError(f"{self._url} sends more than {MAX_REPLY_BYTES} bytes")
                return Response(answer.status_code, _lower(answer.headers), bytes(found))
        except openai.APIStatusError as exc:
            return Response(exc.status_code, _lower(exc.response.headers), exc.response.content)
        except (openai.APIConnectionError, httpx.HTTPError) as exc:
            cause = exc.__cause__ or exc
            raise RemoteError(f"no connection to {self._url}, or it broke: {cause!r}") from exc

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def _set_headers(self, request: httpx.Request) -> None:
        for name in {*request.headers} - SENT_HEADERS:
            del request.headers[name]
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"


def check_address(url: str) -> None:
    """Check that a URL can be an address.

    Raises:
        UsageError: it cannot; no retry would help.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is not a number, or a bracket is missing
        is_address = False
    if not is_address:
        raise UsageError(f"{url} is not an address", hint="for example http://localhost:8000/v1")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
