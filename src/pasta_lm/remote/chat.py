"""What is asked of a chat model behind HTTP, and what it answers, as values.

The JSON is that of OpenAI's chat completions, which vLLM, Gemini's compatible endpoint and our own
server speak too. Knows no socket.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pasta_lm.errors import RemoteError

Message = Mapping[str, str]
"""One turn: ``{"role", "content"}``."""


class Candidate(NamedTuple):
    """A token that the model might have written at one place."""

    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of a reply with its natural log-probability, and the likeliest ones beside it."""

    token: str
    logprob: float
    top: tuple[Candidate, ...] = ()
    """The likeliest first, the written token among them if it is one; empty if not asked for."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request; what is None is left to the server."""

    messages: Sequence[Message]
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    """How many candidates to report for each token; None: no log-probabilities."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the body, such as ``response_format``."""

    def body(self, model: str) -> dict[str, Any]:
        """Return the JSON body."""
        asked: dict[str, Any] = {"model": model, "messages": [dict(one) for one in self.messages]}
        for key in ("max_tokens", "temperature", "seed"):
            if getattr(self, key) is not None:
                asked[key] = getattr(self, key)
        if self.top_logprobs is not None:
            asked |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return {**asked, **self.extra}


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One whole reply."""

    text: str
    """Empty if the model refused."""
    finish_reason: str = "stop"
    """``length`` where the server cut the text."""
    refusal: str | None = None
    """What the model said instead of answering, where the server tells the two apart."""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""
    """As the server names it."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The body as it came, to store and to replay: ``read_reply`` reads it again."""
    num_requests: int = 1
    """How many requests it took, failed ones counted."""


def read_reply(body: bytes | str | Mapping[str, Any]) -> ChatReply:
    """Read the body of a reply.

    Raises:
        RemoteError: it is cut off, or it is no chat completion.
    """
    try:
        raw = body if isinstance(body, Mapping) else json.loads(body)
        choice = raw["choices"][0]
        message = choice["message"]
        usage = raw.get("usage") or {}
        text = message.get("content") or ""
        if not isinstance(text, str):
            raise TypeError("the content is no text")
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
        start = shown[:80]
        raise RemoteError(f"the reply is no chat completion ({exc!r}): {start!r}") from exc


def _logprobs(found: Mapping[str, Any] | None) -> tuple[TokenLogprob, ...]:
    rows = (found or {}).get("content") or ()
    return tuple(
        TokenLogprob(
            str(row["token"]),
            float(row["logprob"]),
            tuple(
                Candidate(str(one["token"]), float(one["logprob"]))
                for one in row.get("top_logprobs") or ()
            ),
        )
        for row in rows
    )
