"""Send one chat request as a stream and note when its text came; nothing is retried.

For measuring servers. Importing this file needs the extra ``data``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx

from pasta_lm.errors import RemoteError
from pasta_lm.learn.chat.transport import check_address

MAX_ERROR_CHARACTERS = 300
BROKEN = "the stream broke off"


@dataclass(slots=True)
class TimedReply:
    """What one request brought, and when: seconds since it was sent."""

    text: str = ""
    text_s: list[float] = field(default_factory=list)  # of each piece of text
    usage: Mapping[str, int] = field(default_factory=dict)
    pasta: Mapping[str, Any] = field(default_factory=dict)  # our own figures, of our own server
    error: str | None = None  # None: the stream came to its end
    sent_s: float = 0.0  # by the clock of ``time.perf_counter``


class TimedClient:
    """Connections to one server, used by the coroutines of one event loop."""

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        """Open no connection yet; ``base_url`` may end in ``/v1``, as clients of OpenAI's write it.

        The environment's proxies are ignored.

        Raises:
            UsageError: it is not an HTTP address.
        """
        check_address(base_url)
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(
            base_url=self.base_url, headers=headers, timeout=None, limits=limits, trust_env=False
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def model(self) -> str:
        """Return the name of the first model of the server.

        Raises:
            RemoteError: there is no server, or it names none.
        """
        try:
            reply = await self._http.get("/v1/models")
            reply.raise_for_status()
            return str(reply.json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as exc:
            raise RemoteError(
                f"{self.base_url} does not say which model it has: {exc!r}",
                hint="start it with `pasta serve`, and set OPENAI_API_KEY if it wants a key",
            ) from exc

    async def post(self, path: str, body: Mapping[str, Any]) -> TimedReply:
        """Send a request and read its stream to the end; what goes wrong is its ``error``."""
        began = time.perf_counter()
        reply = TimedReply(sent_s=began)
        try:
            async with self._http.stream("POST", path, json=dict(body)) as answer:
                if answer.status_code != httpx.codes.OK:
                    said = (await answer.aread()).decode("utf-8", "replace")
                    reply.error = f"{answer.status_code}: {said[:MAX_ERROR_CHARACTERS]}"
                    return reply
                reply.error = BROKEN
                async for line in answer.aiter_lines():
                    if line == "data: [DONE]":
                        reply.error = None if reply.error == BROKEN else reply.error
                    elif line.startswith("data: "):
                        _take(reply, json.loads(line[6:]), time.perf_counter() - began)
        except (httpx.HTTPError, ValueError) as exc:
            reply.error = repr(exc)
        return reply


def _take(reply: TimedReply, piece: Mapping[str, Any], now_s: float) -> None:
    if "error" in piece:
        reply.error = str(piece["error"].get("message"))
    for choice in piece.get("choices") or ():
        if text := choice.get("delta", {}).get("content"):
            reply.text += text
            reply.text_s.append(now_s)
    reply.usage = piece.get("usage") or reply.usage
    reply.pasta = piece.get("pasta") or reply.pasta
