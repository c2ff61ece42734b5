"""Chat requests and replies as values, with the JSON of OpenAI's chat completions.

Stored replies are read here as well, so this file does not need openai's client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pasta_lm.errors import RemoteError

Message = Mapping[str, str]
"""One turn: ``{"role", "content"}``."""


class Response(NamedTuple):
    """What a server sent back; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


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

    def body(self, model: str) -> dict[str, Any]:
        """Return the JSON body."""
        body: dict[str, Any] = {"model": model, "messages": [dict(one) for one in self.messages]}
        for key in ("max_tokens", "temperature"):
            if getattr(self, key) is not None:
                body[key] = getattr(self, key)
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
    num_requests: int = 1
    """Requests that it took, with the failed ones."""


def read_reply(body: bytes | str | Mapping[str, Any]) -> ChatReply:
    """Read the body of a reply.

    Raises:
        RemoteError: it is incomplete, or not a chat completion.
    """
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


def _logprobs(found: Mapping[str, Any] | None) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            *_candidate(row), tuple(_candidate(one) for one in row.get("top_logprobs") or ())
        )
        for row in (found or {}).get("content") or ()
    )


def _candidate(row: Mapping[str, Any]) -> Candidate:
    return Candidate(str(row["token"]), float(row["logprob"]))
