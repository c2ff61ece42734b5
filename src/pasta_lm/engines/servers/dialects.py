"""The dialects of stock servers: requests for completions of token ids, and streamed replies.

Sources: vLLM's ``/v1/completions`` with ``return_token_ids``, SGLang's ``/generate``, llama.cpp's
``/completion``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from pasta_lm.errors import RemoteError, UsageError

KEY_ENV = "PASTA_ENGINE_KEY"
"""The environment variable with the servers' key, if they want one."""
BARRED, FAVOURED = -100.0, 100.0
"""Biases of tokens that must not be sampled, and of the only ones that may be; servers clamp."""


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
        """Return the biases of logits, by which the odds of favoured ids stay."""
        favoured = {token: FAVOURED + self.bias.get(token, 0.0) for token in self.favoured}
        return {**self.bias, **dict.fromkeys(self.barred, BARRED), **favoured}


@dataclass(frozen=True, slots=True)
class CompletionPiece:
    """A part of a streamed completion."""

    token_ids: Sequence[int] = ()
    finish_reason: str | None = None  # ``stop``, ``length``; None: it goes on
    matched: int | None = None  # the id of ``stop_ids`` that ended it, if the server says so
    num_unsent: int = 0  # tokens before these that the server decoded and did not send


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of server."""

    name: str
    path: str
    """Of completions, behind the server's address."""
    body: Callable[[str, TokenRequest], dict[str, Any]]
    """From the model's name and a request to the JSON body."""
    piece: Callable[[Mapping[str, Any], int], CompletionPiece]
    """From a streamed JSON object, and the number of ids received before it, to a piece."""
    known_by: tuple[str, str]
    """A page that this kind of server has, and a key of its JSON."""
    tokenize_path: str
    tokenize_body: Callable[[str, str], dict[str, Any]]
    """From the model's name and a text, whose tags are tags, to the JSON body."""
    tokens: Callable[[Mapping[str, Any]], Sequence[int]] = itemgetter("tokens")
    """From the reply to the ids of the text, with or without a begin-of-text."""
    whole: Callable[[Mapping[str, Any]], Sequence[int]] | None = None
    """From the reply to the ids of a completion that is not streamed; for servers that leave ids
    out of streams."""


def _sampling(request: TokenRequest) -> dict[str, Any]:
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "stop_token_ids": list(request.stop_ids),
        "logit_bias": {str(token): bias for token, bias in request.biases.items()},
        "ignore_eos": request.ignore_eos,
        "skip_special_tokens": False,
    }


def _vllm_body(model: str, request: TokenRequest) -> dict[str, Any]:
    body = {
        "model": model,
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        **_sampling(request),
        "return_token_ids": True,
        "stream": True,
    }
    return body if request.top_k is None else {**body, "top_k": request.top_k}


def _vllm_piece(data: Mapping[str, Any], _num_received: int) -> CompletionPiece:
    if not data["choices"]:  # a last chunk may hold the usage alone
        return CompletionPiece()
    choice = data["choices"][0]
    if choice.get("token_ids") is None and choice.get("text"):
        raise RemoteError(
            "the server sends text without token ids",
            hint="it must know return_token_ids: vLLM 0.10.2 or later",
        )
    token_ids, reason = choice.get("token_ids") or (), choice.get("finish_reason")
    return CompletionPiece(token_ids, reason, _int(choice.get("stop_reason")))


def _sglang_body(_model: str, request: TokenRequest) -> dict[str, Any]:
    sampling = {
        "max_new_tokens": request.max_tokens,
        "top_k": -1 if request.top_k is None else request.top_k,
        "sampling_seed": request.seed,
        **_sampling(request),
    }
    return {"input_ids": list(request.prompt), "sampling_params": sampling, "stream": True}


def _sglang_piece(data: Mapping[str, Any], num_received: int) -> CompletionPiece:
    about = data["meta_info"]
    # Some versions send all ids so far each time, others the new ones: the count tells.
    num_new = about["completion_tokens"] - num_received
    token_ids = data["output_ids"][-num_new:] if num_new > 0 else ()
    reason = about.get("finish_reason") or {}
    return CompletionPiece(token_ids, reason.get("type"), _int(reason.get("matched")))


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _llama_cpp_body(_model: str, request: TokenRequest) -> dict[str, Any]:
    return {
        "prompt": list(request.prompt),
        "n_predict": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k or 0,
        "min_p": request.min_p,  # on by default
        "seed": request.seed % 2**32,
        "logit_bias": [
            [token, False if token in request.barred else bias]
            for token, bias in request.biases.items()
        ],
        "ignore_eos": request.ignore_eos,
        "cache_prompt": True,
        "return_tokens": True,
        "stream": True,
    }


def _llama_cpp_piece(data: Mapping[str, Any], num_received: int) -> CompletionPiece:
    is_last, token_ids = bool(data.get("stop")), data["tokens"]
    # A token that ends inside a character is not sent, nor is it sent with the one that ends it.
    num_unsent = data.get("tokens_predicted", 0) - num_received - len(token_ids)
    reason = ("length" if data.get("stop_type") == "limit" else "stop") if is_last else None
    return CompletionPiece(token_ids, reason, num_unsent=max(0, num_unsent))


def _sglang_text(_model: str, text: str) -> dict[str, Any]:
    # Not all versions have a page that encodes, but all name the ids of log-probabilities.
    about = {"return_logprob": True, "logprob_start_len": 0}
    return {"text": text, "sampling_params": {"max_new_tokens": 1}, **about}


def _sglang_tokens(data: Mapping[str, Any]) -> Sequence[int]:
    return [token for _, token, *_ in data["meta_info"]["input_token_logprobs"]]


VLLM, SGLANG, LLAMA_CPP = "vllm", "sglang", "llama.cpp"
DIALECTS = {
    VLLM: Dialect(
        name=VLLM,
        path="/v1/completions",
        body=_vllm_body,
        piece=_vllm_piece,
        known_by=("/version", "version"),
        tokenize_path="/tokenize",
        tokenize_body=lambda model, text: {
            "model": model,
            "prompt": text,
            "add_special_tokens": False,
        },
    ),
    SGLANG: Dialect(
        name=SGLANG,
        path="/generate",
        body=_sglang_body,
        piece=_sglang_piece,
        known_by=("/get_model_info", "model_path"),
        tokenize_path="/generate",
        tokenize_body=_sglang_text,
        tokens=_sglang_tokens,
    ),
    LLAMA_CPP: Dialect(
        name=LLAMA_CPP,
        path="/completion",
        body=_llama_cpp_body,
        piece=_llama_cpp_piece,
        known_by=("/props", "default_generation_settings"),
        tokenize_path="/tokenize",
        tokenize_body=lambda _, text: {
            "content": text,
            "add_special": False,
            "parse_special": True,
        },
        whole=itemgetter("tokens"),
    ),
}
_OWNERS = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMA_CPP}  # as ``/v1/models`` says it


def dialect_of(name: str) -> Dialect:
    """Return the dialect of a name; a ``UsageError`` if there is none."""
    if name not in DIALECTS:
        raise UsageError(f"unknown dialect {name!r}", hint=f"one of {', '.join(DIALECTS)}")
    return DIALECTS[name]


class ServedName(NamedTuple):
    """The first model in a reply to ``/v1/models``."""

    model: str
    dialect: Dialect | None
    context: int | None  # tokens of prompt and answer
    owner: str
    root: str | None  # the folder or hub id of its weights


def read_models(data: Mapping[str, Any]) -> ServedName:
    """Return the first model in a reply to ``/v1/models``; a RemoteError if there is none."""
    try:
        first = data["data"][0]
        owner, root = str(first.get("owned_by") or ""), first.get("root")
        dialect = DIALECTS.get(_OWNERS.get(owner, ""))
        context = _int(first.get("max_model_len"))
        return ServedName(str(first["id"]), dialect, context, owner, root and str(root))
    except (KeyError, IndexError, TypeError, AttributeError) as exc:
        raise RemoteError("the reply to /v1/models names no model") from exc


def server_urls(addresses: str) -> Iterable[str]:
    """Return the addresses of servers that a comma separates, without ``/v1`` at their end."""
    urls = (url.strip().rstrip("/").removesuffix("/v1") for url in addresses.split(","))
    return [url for url in urls if url]
