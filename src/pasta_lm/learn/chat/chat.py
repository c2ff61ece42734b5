"""Chat requests and replies as values, with the JSON of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pasta_lm.errors import RemoteError

Message = Mapping[str, str]
"""One turn: ``{"role", "content"}``."""


MAX_TOKENS, MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
"""Keys of the limit of a reply; reasoning models want the second."""


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


def _logprobs(logprobs: Mapping[str, Any] | None) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(*_candidate(row), tuple(map(_candidate, row.get("top_logprobs") or ())))
        for row in (logprobs or {}).get("content") or ()
    )


def _candidate(row: Mapping[str, Any]) -> Candidate:
    return Candidate(str(row["token"]), float(row["logprob"]))
