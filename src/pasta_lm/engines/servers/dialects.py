"""The dialects of stock servers: requests for completions of token ids, and streamed replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pasta_lm.errors import RemoteError

Json = Mapping[str, Any]
KEY_ENV = "PASTA_ENGINE_KEY"  # the environment variable with the servers' key, if they want one
BARRED, FAVOURED = -100.0, 100.0
"""Biases of tokens that must not be sampled, and of the only ones that may be; servers clamp."""

NO_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Left out, they and others are as a server's flags or the model's generation_config.json say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """One completion: token ids in, token ids out."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    seed: int = 0
    bias: Mapping[int, float] = field(default_factory=dict)  # added to the logits of these ids
    barred: Sequence[int] = ()  # ids that shall not be sampled
    favoured: Sequence[int] = ()  # if any, the only ids that may be sampled
    stop_ids: Sequence[int] = ()  # ids behind which the server may stop
    ignore_eos: bool = False

    @property
    def biases(self) -> dict[int, float]:
        """Return the biases of logits; the largest of favoured ids is ``FAVOURED``: odds stay."""
        bias = {token: self.bias.get(token, 0.0) for token in self.favoured}
        highest = max(bias.values(), default=0.0)
        favoured = {token: FAVOURED + added - highest for token, added in bias.items()}
        return {**({} if favoured else self.bias), **dict.fromkeys(self.barred, BARRED), **favoured}


@dataclass(frozen=True, slots=True)
class CompletionPiece:
    """A piece of a streamed completion."""

    token_ids: Sequence[int] = ()
    finish_reason: str | None = None  # ``stop``, ``length``; None: it goes on
    matched: int | None = None  # the id of ``stop_ids`` that ended it, if the server says so
    num_unsent: int = 0  # tokens before these that the server decoded and did not send

    def __post_init__(self) -> None:
        if min(self.token_ids, default=0) < 0:
            raise ValueError("a token has a negative id")


class Dialect(Protocol):
    """One kind of server."""

    name: ClassVar[str]
    owner: ClassVar[str]  # in the reply to ``/v1/models``
    path: ClassVar[str]  # where completions are requested
    tokenize_path: ClassVar[str] = "/tokenize"

    # The JSON body that asks for a streamed completion.
    def body(self, model: str, request: TokenRequest) -> dict[str, object]: ...
    # An object of a stream, before which so many ids were received.
    def piece(self, data: Json, num_received: int) -> CompletionPiece: ...
    # The JSON body that asks for the ids of a text, whose tags are tags.
    def tokenize_body(self, model: str, text: str) -> dict[str, object]: ...

    def tokens(self, data: Json) -> list[int]:
        """Read the ids of a text, with or without a begin-of-text, or of a whole completion."""
        return [*data["tokens"]]


def _sampling(request: TokenRequest) -> dict[str, object]:
    return {
        "temperature": request.temperature, "top_p": request.top_p, "min_p": request.min_p,
        "top_k": request.top_k or -1, **NO_PENALTIES, "repetition_penalty": 1.0,
        "stop_token_ids": list(request.stop_ids),
        "logit_bias": {str(token): bias for token, bias in request.biases.items()},
        "ignore_eos": request.ignore_eos, "skip_special_tokens": False,
    }  # fmt: skip


class Vllm(Dialect):
    """``/v1/completions`` with ``return_token_ids``."""

    name = owner = "vllm"
    path = "/v1/completions"

    def body(self, model: str, request: TokenRequest) -> dict[str, object]:
        return {
            "model": model, "prompt": list(request.prompt), "max_tokens": request.max_tokens,
            "seed": request.seed, **_sampling(request), "return_token_ids": True, "stream": True,
        }  # fmt: skip

    def piece(self, data: Json, num_received: int) -> CompletionPiece:
        if not data["choices"]:  # a last chunk may hold the usage alone
            return CompletionPiece()
        choice = data["choices"][0]
        token_ids = choice.get("token_ids")
        if token_ids is None and choice.get("text"):
            reason = "the server sends text without token ids"
            raise RemoteError(reason, hint="it must know return_token_ids: vLLM 0.10.2 or later")
        matched = int_or_none(choice.get("stop_reason"))
        return CompletionPiece(token_ids or (), choice.get("finish_reason"), matched)

    def tokenize_body(self, model: str, text: str) -> dict[str, object]:
        return {"model": model, "prompt": text, "add_special_tokens": False}


class Sglang(Dialect):
    """``/generate``."""

    name = owner = "sglang"
    path = tokenize_path = "/generate"

    def body(self, model: str, request: TokenRequest) -> dict[str, object]:
        limits = {"max_new_tokens": request.max_tokens, "sampling_seed": request.seed}
        sampling = _sampling(request) | limits
        return {"input_ids": list(request.prompt), "sampling_params": sampling, "stream": True}

    def piece(self, data: Json, num_received: int) -> CompletionPiece:
        about = data["meta_info"]
        # Some versions send all ids so far each time, others the new ones: the count tells.
        num_new = about["completion_tokens"] - num_received
        token_ids = data["output_ids"][-num_new:] if num_new > 0 else ()
        reason = about.get("finish_reason") or {}
        return CompletionPiece(token_ids, reason.get("type"), int_or_none(reason.get("matched")))

    def tokenize_body(self, model: str, text: str) -> dict[str, object]:
        # Not all versions have a page that encodes, but all name the ids of log-probabilities.
        about = {"return_logprob": True, "logprob_start_len": 0}
        return {"text": text, "sampling_params": {"max_new_tokens": 1}, **about}

    def tokens(self, data: Json) -> list[int]:
        return [token for _, token, *_ in data["meta_info"]["input_token_logprobs"]]


class LlamaCpp(Dialect):
    """``/completion`` of llama.cpp's server."""

    name, owner = "llama.cpp", "llamacpp"
    path = "/completion"

    def body(self, model: str, request: TokenRequest) -> dict[str, object]:
        biases, barred = request.biases, request.barred
        return {
            "prompt": list(request.prompt), "n_predict": request.max_tokens,
            "temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k or 0,
            "min_p": request.min_p, **NO_PENALTIES, "repeat_penalty": 1.0, "mirostat": 0,
            "samplers": ["top_k", "temperature", "min_p", "top_p"],  # the order of local draws
            "dynatemp_range": 0.0, "seed": request.seed % 2**32, "stream": True,
            "logit_bias": [[id_, False if id_ in barred else bias] for id_, bias in biases.items()],
            "ignore_eos": request.ignore_eos, "cache_prompt": True, "return_tokens": True,
        }  # fmt: skip

    def piece(self, data: Json, num_received: int) -> CompletionPiece:
        token_ids, reason = data["tokens"], None
        if data.get("stop"):
            reason = "length" if data.get("stop_type") == "limit" else "stop"
        # A token that ends inside a character is not sent, nor is it with the one that ends it.
        num_unsent = data.get("tokens_predicted", 0) - num_received - len(token_ids)
        return CompletionPiece(token_ids, reason, num_unsent=max(0, num_unsent))

    def tokenize_body(self, model: str, text: str) -> dict[str, object]:
        return {"content": text, "add_special": False, "parse_special": True}


DIALECTS: Mapping[str, Dialect] = {kind.name: kind for kind in (Vllm(), Sglang(), LlamaCpp())}


def int_or_none(value: object) -> int | None:
    return value if isinstance(value, int) else None


def server_urls(addresses: str) -> list[str]:
    """Return the addresses of servers that a comma separates, without ``/v1`` at their end."""
    urls = (url.strip().rstrip("/").removesuffix("/v1") for url in addresses.split(","))
    return [url for url in urls if url]
