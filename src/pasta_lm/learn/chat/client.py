"""Chat models over HTTP: their servers and prices, requests, replies, and what is retried."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pasta_lm.engines.servers.cluster import least_loaded
from pasta_lm.engines.servers.request_pace import (
    Attempts,
    HttpReply,
    RequestPace,
    RetryPolicy,
    TemporaryFailure,
    raise_for_status,
)
from pasta_lm.errors import MissingExtraError, RemoteError, UsageError
from pasta_lm.recipe import check_positive, without_passwords

if TYPE_CHECKING:
    from pasta_lm.engines.servers.client import HttpClient

Message = Mapping[str, str]
"""One turn: ``{"role", "content"}``."""
MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
"""Keys of the limit of a reply; reasoning models want the second."""
PATH = "/chat/completions"
REST_S = 5.0
"""A server that failed rests so long, or it would draw all requests by failing at once."""


class Candidate(NamedTuple):
    """A token with its natural log-probability."""

    token: str
    logprob: float


class TokenLogprob(NamedTuple):
    """One token of a reply, and the most likely tokens at its position if they were asked for."""

    token: str
    logprob: float
    top: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request; the server chooses what is None."""

    messages: Sequence[Message]
    max_tokens: int | None = None
    temperature: float | None = None
    top_logprobs: int | None = None
    """Number of candidates to report for each token; None: no log-probabilities."""

    def body(self, model: str, limit_key: str = MAX_TOKENS) -> dict[str, Any]:
        """Return the JSON body; ``limit_key`` is the key of ``max_tokens``."""
        body: dict[str, Any] = {"model": model, "messages": list(map(dict, self.messages))}
        if self.max_tokens is not None:
            body[limit_key] = self.max_tokens
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.top_logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return body


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One complete reply."""

    text: str
    """Empty if the model refused."""
    finish_reason: str = "stop"
    """``length`` if the server cut the text."""
    refusal: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""
    """As the server names it."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The body as it came; ``read_reply`` reads it again."""


def read_reply(body: bytes | str | Mapping[str, Any]) -> ChatReply:
    """Read the body of a reply; a RemoteError if it is incomplete or no chat completion."""
    try:
        raw = body if isinstance(body, Mapping) else json.loads(body)
        choice = raw["choices"][0]
        message = choice["message"]
        usage = raw.get("usage") or {}
        text = message.get("content") or ""
        if not isinstance(text, str):
            raise TypeError("the content is not text")
        return ChatReply(
            text=text,
            finish_reason=str(choice.get("finish_reason") or "stop"),
            refusal=message.get("refusal") or None,
            logprobs=_logprobs(choice.get("logprobs")),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            model=str(raw.get("model") or ""),
            raw=raw,
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        shown = body if isinstance(body, str | bytes) else json.dumps(body)
        raise RemoteError(f"not a chat completion ({exc!r}): {shown[:80]!r}") from exc


def _logprobs(logprobs: Mapping[str, Any] | None) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(*_candidate(row), tuple(map(_candidate, row.get("top_logprobs") or ())))
        for row in (logprobs or {}).get("content") or ()
    )


def _candidate(row: Mapping[str, Any]) -> Candidate:
    return Candidate(str(row["token"]), float(row["logprob"]))


class TokenCounts(NamedTuple):
    """Tokens of one or of many requests."""

    prompt: int
    completion: int


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a model in US dollars per million tokens; None: unknown."""

    input: float | None = None
    output: float | None = None

    def __post_init__(self) -> None:
        if (self.input is None) != (self.output is None):
            raise UsageError(
                "the prices of input and output go together",
                hint="give both, input_price and output_price",
            )
        if min(self.input or 0.0, self.output or 0.0) < 0:
            raise UsageError("a price is below 0: input_price or output_price")

    @property
    def are_known(self) -> bool:
        """Return whether costs can be computed."""
        return self.input is not None

    def cost_usd(self, tokens: TokenCounts) -> float:
        """Return the cost of tokens; 0 if the prices are unknown."""
        return (tokens.prompt * (self.input or 0) + tokens.completion * (self.output or 0)) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A chat model, its servers and its prices: the keys of every such table of a recipe."""

    base_url: str
    """Ends in ``/v1``; several servers of the model are separated by commas."""
    model: str
    """As the servers name it."""
    api_key_env: str | None = None
    """Name of the environment variable with the key, which is in no file; None: no key."""
    timeout_s: float = 120.0
    """For one request, answer included."""
    max_in_flight: int = 32
    """Bound on concurrent requests; a run begins with few and halves their number on a 429."""
    input_price: float | None = None
    """US dollars per million tokens of prompts."""
    output_price: float | None = None
    """US dollars per million tokens of replies."""

    def __post_init__(self) -> None:
        check_positive(self.table(), self, "timeout_s", "max_in_flight")
        _ = self.prices  # validates them

    @staticmethod
    def table() -> str:
        """Return the name of the table in a recipe, for messages."""
        return "endpoint"

    @property
    def prices(self) -> Prices:
        """Return the prices of the model."""
        return Prices(self.input_price, self.output_price)

    @property
    def address(self) -> str:
        """Return the URLs without passwords, for files and messages."""
        return without_passwords(self.base_url)

    def api_key(self) -> str | None:
        """Return the key, None if the server needs none; a UsageError if it is not usable."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise UsageError(
                f"no key for {self.address}: {self.api_key_env} is not set",
                hint=f"export {self.api_key_env}=...",
            )
        if not (key.isascii() and key.isprintable()):
            raise UsageError(
                f"{self.api_key_env} contains characters that no key has", hint="copy it again"
            )
        return key


@dataclass(slots=True)
class ChatServer:
    """One server, its load, and the time until which it rests."""

    client: HttpClient
    now_s: Callable[[], float]
    num_in_flight: int = 0
    rests_until_s: float = 0.0

    @property
    def is_up(self) -> bool:
        return self.rests_until_s <= self.now_s()


class ChatServers:
    """Several servers of one model: each request goes to the least loaded one."""

    def __init__(
        self, clients: Sequence[HttpClient], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._servers = [ChatServer(client, now_s) for client in clients]
        self._now_s = now_s

    async def post(self, body: Mapping[str, Any]) -> HttpReply:
        """Return the reply of one server; a ``TemporaryFailure`` if there is none."""
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
        for server in self._servers:
            await server.client.close()


def connect(endpoint: Endpoint) -> ChatServers:
    """Return the servers of an endpoint.

    Raises:
        MissingExtraError: httpx2 is not installed.
        UsageError: the address is wrong or the key is missing.
    """
    if not find_spec("httpx2"):
        raise MissingExtraError(f"asking {endpoint.address}", "data")
    from pasta_lm.engines.servers.client import HttpClient

    key = endpoint.api_key()
    return ChatServers([HttpClient(url, key) for url in endpoint.base_url.split(",")])


class ChatClient:
    """Asks one endpoint; shared by the coroutines of one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        pace: RequestPace | None = None,
        policy: RetryPolicy | None = None,
        transport: ChatServers | None = None,
        random: Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.endpoint = endpoint
        self.pace = pace or RequestPace(endpoint.max_in_flight)
        self._policy = policy or RetryPolicy()
        self._transport = transport or connect(endpoint)
        self._random = random or Random()
        self._sleep = sleep
        self._sending: set[asyncio.Task[Any]] = set()
        self._is_draining = False
        self._limit_key = MAX_TOKENS

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()

    @property
    def sending(self) -> Set[asyncio.Task[Any]]:
        """Return the tasks that have a request in flight, which may be paid."""
        return self._sending

    def drain(self) -> None:
        """Cancel every task that would send or retry; requests in flight are awaited."""
        self._is_draining = True

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Return the model's reply to one request.

        408, 409, 429, 5xx, time-outs, broken connections and broken replies are retried.

        Raises:
            EndpointError: the key, the model or the address is wrong: no request can succeed.
            RequestError: the server refuses this request; others may succeed.
            RemoteError: no answer after all retries.
        """
        attempts = Attempts(
            self.endpoint.address,
            self.pace,
            self._policy,
            random=self._random,
            sleep=self._sleep,
        )
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                async with self.pace.slot() as era:
                    outcome = await self._attempt(request, task)
            finally:  # not earlier: leaving the slot may wait, with a paid reply in hand
                self._sending.discard(task)
            if isinstance(outcome, ChatReply):
                self.pace.grow(era)
                return outcome
            self._require_open()
            await attempts.wait(outcome, era)

    async def _attempt(
        self, request: ChatRequest, task: asyncio.Task[Any]
    ) -> ChatReply | TemporaryFailure:
        self._require_open()
        self._sending.add(task)
        try:
            # Of the whole answer: HTTP clients bound the time between two pieces.
            async with asyncio.timeout(self.endpoint.timeout_s):
                reply = await self._post(request)
            raise_for_status(reply, self.endpoint.address, f"model {self.endpoint.model!r}")
            return read_reply(reply.body)
        except TimeoutError:
            return TemporaryFailure(f"nothing within {self.endpoint.timeout_s:g} s")
        except RemoteError as exc:
            return TemporaryFailure(exc.message)
        except TemporaryFailure as failure:
            return failure

    def _require_open(self) -> None:
        if self._is_draining:
            raise asyncio.CancelledError

    async def _post(self, request: ChatRequest) -> HttpReply:
        """Send a request, again under another key where the model wants its limit there."""
        model = self.endpoint.model
        reply = await self._transport.post(request.body(model, self._limit_key))
        wants_other_key = reply.status == 400 and MAX_COMPLETION_TOKENS.encode() in reply.body
        if wants_other_key and self._limit_key != MAX_COMPLETION_TOKENS:
            self._limit_key = MAX_COMPLETION_TOKENS
            reply = await self._transport.post(request.body(model, self._limit_key))
        return reply
