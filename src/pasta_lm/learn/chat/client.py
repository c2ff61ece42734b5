"""Chat models over HTTP: their servers, requests, replies, and what is retried."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from typing import NamedTuple, Self

from pasta_lm.engines.servers import client as http
from pasta_lm.errors import MissingExtraError, RemoteError, UsageError
from pasta_lm.journal import Row
from pasta_lm.recipe import check_positive, without_passwords

Message = Mapping[str, str]  # One turn: ``{"role", "content"}``.
MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
"""Keys of the limit of a reply; reasoning models want the second."""
PATH = "/chat/completions"
NO_TEXT = ("thinking", "redacted_thinking", "reasoning", "refusal")
"""Types of the parts of a content that are not of the answer."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float = 0.0
    top_logprobs: int = 0  # Number of candidates to report for each token; 0: no log-probabilities.

    def body(self, model: str, limit_key: str = MAX_TOKENS) -> Row:
        body: Row = {"model": model, "messages": list(map(dict, self.messages))}
        body |= {limit_key: self.max_tokens, "temperature": self.temperature}
        if self.top_logprobs:
            body |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return body


class TokenCounts(NamedTuple):
    """Tokens of one or of many requests."""

    prompt: int
    completion: int


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One complete reply."""

    text: str  # Empty if the model refused.
    finish_reason: str = "stop"  # ``length`` if the server cut the text.
    refusal: str | None = None
    candidates: Mapping[str, float] = field(default_factory=dict)
    """Natural log-probabilities of the likeliest first tokens, if they were asked for."""
    tokens: TokenCounts = TokenCounts(0, 0)  # As the server reports them; 0 if it does not.
    raw: Row = field(default_factory=dict)  # The body as it came; ``read_reply`` reads it again.


def read_reply(body: bytes | str | Row) -> ChatReply:
    try:
        raw = body if isinstance(body, Mapping) else json.loads(body)
        choice = raw["choices"][0]
        message = choice["message"]
        usage = raw.get("usage") or {}
        counts = (int(usage.get(f"{name}_tokens") or 0) for name in TokenCounts._fields)
        content = message.get("content") or ""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        refusals = [part["refusal"] for part in parts if part["type"] == "refusal"]
        return ChatReply(
            text="".join(part["text"] for part in parts if part["type"] not in NO_TEXT),
            finish_reason=str(choice.get("finish_reason") or "stop"),
            refusal=message.get("refusal") or "".join(refusals) or None,
            candidates=_candidates(choice.get("logprobs")),
            tokens=TokenCounts(*counts),
            raw=raw,
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        shown = body if isinstance(body, str | bytes) else json.dumps(body)
        raise RemoteError(f"not a chat completion ({exc!r}): {shown[:80]!r}") from exc


def _candidates(logprobs: Row | None) -> dict[str, float]:
    rows = (logprobs or {}).get("content") or ()
    top = (rows[0].get("top_logprobs") or rows[:1]) if rows else ()
    return {str(row["token"]): float(row["logprob"]) for row in top}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A chat model and its servers: the keys of every such table of a recipe."""

    TABLE = "endpoint"
    base_url: str  # Ends in ``/v1``; several servers of the model are separated by commas.
    model: str  # As the servers name it.
    api_key_env: str | None = None
    """Name of the environment variable with the key, which is in no file; None: no key."""
    timeout_s: float = 120.0  # For one request, answer included.
    max_in_flight: int = 32  # Bound on concurrent requests.

    def __post_init__(self) -> None:
        check_positive(self.TABLE, self, "timeout_s", "max_in_flight")

    @property
    def address(self) -> str:
        """Return the URLs without passwords, for files and messages."""
        return without_passwords(self.base_url)

    def api_key(self) -> str | None:
        """Return the key, None if the server needs none; a UsageError if it is not usable."""
        if (name := self.api_key_env) is None:
            return None
        if not (key := os.environ.get(name, "").strip()):
            reason = f"no key for {self.address}: {name} is not set"
            raise UsageError(reason, hint=f"export {name}=...")
        if not (key.isascii() and key.isprintable()):
            raise UsageError(f"{name} contains characters that no key has", hint="copy it again")
        return key


class ChatClient:
    """Asks the servers of one endpoint in turn.

    It is shared by the coroutines of one event loop, which bound their number.
    """

    def __init__(
        self, endpoint: Endpoint, *, policy: http.RetryPolicy | None = None,
        servers: Sequence[http.HttpClient] | None = None,
    ) -> None:  # fmt: skip
        self.endpoint, self._pause = endpoint, http.Pause()
        self._policy = policy or http.RetryPolicy()
        if not servers:
            if not find_spec("httpx2"):
                raise MissingExtraError(f"asking {endpoint.address}", "annotate")
            key = endpoint.api_key()
            servers = [http.HttpClient(url, key) for url in endpoint.base_url.split(",")]
        self._servers, self._turns = servers, cycle(servers)
        self.sending: set[asyncio.Task[object]] = set()
        """The tasks that have a request in flight, which may be paid."""
        self._is_draining, self._limit_key = False, MAX_TOKENS

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            await server.close()

    def drain(self) -> None:
        """Cancel every task that would retry; requests in flight are awaited."""
        self._is_draining = True

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Return the model's reply to one request.

        408, 409, 429, 5xx, time-outs, broken connections and broken replies are retried. An
        EndpointError means that no request can succeed, a RequestError that others may.
        """
        attempts = http.Attempts(self.endpoint.address, self._pause, self._policy)
        return await attempts.reply(partial(self._attempt, request))

    async def _attempt(self, request: ChatRequest) -> ChatReply:
        endpoint, task = self.endpoint, asyncio.current_task()
        assert task is not None
        self.sending.add(task)
        try:
            # The bound of the whole answer: HTTP clients bound the time between two pieces.
            async with asyncio.timeout(endpoint.timeout_s):
                reply = await self._post(request)
            http.raise_for_status(reply, endpoint.address, f"model {endpoint.model!r}")
            return read_reply(reply.body)
        except TimeoutError:
            failure = http.TemporaryFailure(f"nothing within {endpoint.timeout_s:g} s")
        except RemoteError as exc:
            failure = http.TemporaryFailure(exc.message)
        except http.TemporaryFailure as exc:
            failure = exc
        finally:
            self.sending.discard(task)
        raise asyncio.CancelledError if self._is_draining else failure

    async def _post(self, request: ChatRequest) -> http.HttpReply:
        """Send a request, again under another key where the model wants its limit there."""
        model, send = self.endpoint.model, partial(next(self._turns).send, "POST", PATH)
        reply = await send(request.body(model, self._limit_key))
        wants_other_key = reply.status == 400 and MAX_COMPLETION_TOKENS.encode() in reply.body
        if wants_other_key and self._limit_key != MAX_COMPLETION_TOKENS:
            self._limit_key = MAX_COMPLETION_TOKENS
            reply = await send(request.body(model, self._limit_key))
        return reply
