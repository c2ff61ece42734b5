"""A stock server for tests: plain causal completions of token ids, streamed; it knows no tags.

It speaks the dialects of vLLM, SGLang and llama.cpp as far as ``remote.dialects`` uses them. What
decodes is a function from ids, those that are barred, and how to sample, to the next id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.fakes.scripted_server import QuietHandler, ThreadedServer, send


@dataclass(frozen=True, slots=True)
class Draw:
    temperature: float
    top_p: float
    top_k: int | None
    seed: int  # of the completion
    index: int  # of the token in it
    favoured: frozenset[int] = frozenset()  # if any, the only ids that may be chosen


NextToken = Callable[[Sequence[int], Set[int], Draw], int]
"""From all ids so far, the ids that may not be chosen, and the sampling to the next id."""
Tokenize = Callable[[str], Sequence[int]]
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp"}
PATHS = {"/v1/completions": "vllm", "/generate": "sglang", "/completion": "llama.cpp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StockFaults:
    num_refused: int = 0  # The first completions get ``status``.
    status: int = 429
    retry_after_s: float | None = None
    most_at_once: int | None = None  # Completions; one more gets ``status``.
    dies_after: int | None = None
    """Tokens of all completions together after which every connection breaks off."""
    hangs_after: int | None = None
    """Tokens of all completions together after which nothing more is sent."""
    pause_s: float = 0.0  # Before each token.
    unsent: Set[int] = frozenset()
    """Ids that llama.cpp's dialect leaves out of streams, as if each ended inside a character."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A completion in no dialect."""

    prompt: Sequence[int]
    max_tokens: int
    biases: Mapping[int, float]
    stop_ids: frozenset[int]
    ignore_eos: bool
    temperature: float
    top_p: float
    top_k: int | None
    seed: int
    is_streamed: bool = True


class StockTestServer(ThreadedServer):
    """A stock server whose tokens a function chooses.

    Attributes:
        prompts: The ids of every completion that was begun, in order.
        num_open: Completions that are being streamed.
        num_refused: Completions that got an error.
    """

    request_queue_size = 128

    def __init__(
        self,
        next_token: NextToken,
        eos_id: int | Collection[int],
        *,
        dialect: str = "vllm",
        faults: StockFaults | None = None,
        tokenize: Tokenize | None = None,  # None: it does not tell
        context: int | None = None,  # tokens of prompt and answer, as it says them
        api_key: str | None = None,
        port: int = 0,
    ) -> None:
        self.prompts: list[Sequence[int]] = []
        self.num_open = self.num_refused = 0
        self._next_token = next_token
        self._eos_ids = frozenset([eos_id] if isinstance(eos_id, int) else eos_id)
        self._dialect, self._faults = dialect, faults or StockFaults()
        self._tokenize, self._context = tokenize, context
        self._num_sent = 0
        super().__init__(("127.0.0.1", port), _Handler, api_key)

    def answer(self, handler: QuietHandler, body: Mapping[str, Any]) -> None:
        dialect = PATHS[handler.path]
        asked = _READ[dialect](body)
        with self._lock:
            self.prompts.append(asked.prompt)
            most = self._faults.most_at_once
            is_refused = len(self.prompts) <= self._faults.num_refused
            is_refused |= most is not None and self.num_open >= most
            self.num_open += not is_refused
            self.num_refused += is_refused
        if is_refused:
            after_s, error = self._faults.retry_after_s, {"message": "the script says so"}
            headers = {} if after_s is None else {"Retry-After": str(after_s)}
            return send(handler, self._faults.status, {"error": error}, headers)
        try:
            chunks = self._chunks(asked, _WRITE[dialect])
            if not asked.is_streamed:
                ids = [token for chunk in chunks for token in chunk["tokens"]]
                send(handler, 200, {"tokens": ids, "stop": True})
                return
            handler.send_response(200)
            handler.send_header("Content-Type", "text/event-stream")
            handler.end_headers()
            for chunk in chunks:
                if {*chunk.get("tokens", ())} & self._faults.unsent:
                    continue
                handler.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                handler.wfile.flush()
        finally:
            with self._lock:
                self.num_open -= 1

    def _chunks(self, asked: _Asked, write: _Write) -> Iterator[dict[str, Any]]:
        ids: list[int] = []
        barred = frozenset(token for token, bias in asked.biases.items() if bias <= -100)
        if asked.ignore_eos and self._dialect == "llama.cpp":  # others send it, and go on
            barred |= self._eos_ids
        stops = asked.stop_ids.union(() if asked.ignore_eos else self._eos_ids)
        favoured = frozenset(token for token, bias in asked.biases.items() if bias >= 100)
        while len(ids) < asked.max_tokens:
            self._closing.wait(self._faults.pause_s)
            how = asked.temperature, asked.top_p, asked.top_k, asked.seed
            token = self._next_token([*asked.prompt, *ids], barred, Draw(*how, len(ids), favoured))
            if not self._may_send():
                return
            ids.append(token)
            if token in stops:
                yield write(ids, "stop", None if token in self._eos_ids else token)
                return
            yield write(ids, None, None)
        yield write(ids, "length", None)

    def _may_send(self) -> bool:
        """Count a token; return whether the connection lives. A server that hangs waits here."""
        with self._lock:
            self._num_sent += 1
            num_sent, faults = self._num_sent, self._faults
        if faults.hangs_after is not None and num_sent > faults.hangs_after:
            self._closing.wait()
        is_dead = faults.dies_after is not None and num_sent > faults.dies_after
        return not is_dead and not self._closing.is_set()

    def page(self, path: str) -> tuple[int, dict[str, Any]]:
        if path == "/v1/models":
            about = {"max_model_len": self._context, "owned_by": OWNERS[self._dialect]}
            return 200, {"data": [{"id": "stock", **about}]}
        return 404, {}

    def tokens(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the reply to a request for the ids of a text; None if it is another request."""
        keys = {"vllm": "prompt", "sglang": "text", "llama.cpp": "content"}
        text = body.get(keys[self._dialect])
        pages = {"vllm": "/tokenize", "sglang": "/generate", "llama.cpp": "/tokenize"}
        if self._tokenize is None or path != pages[self._dialect] or not isinstance(text, str):
            return None
        ids = self._tokenize(text)
        if self._dialect != "sglang":
            return {"tokens": ids}
        return {"meta_info": {"input_token_logprobs": [[-1.0, token, None] for token in ids]}}


_Write = Callable[[list[int], str | None, int | None], dict[str, Any]]


def _read_vllm(body: Mapping[str, Any]) -> _Asked:
    return _Asked(
        body["prompt"], body["max_tokens"],
        {int(token): bias for token, bias in body["logit_bias"].items()},
        frozenset(body["stop_token_ids"]), body["ignore_eos"], body["temperature"], body["top_p"],
        body["top_k"] if body.get("top_k", 0) > 0 else None, body["seed"],
        is_streamed=body.get("stream", True),
    )  # fmt: skip


def _read_sglang(body: Mapping[str, Any]) -> _Asked:
    about = body["sampling_params"]
    named = {"prompt": body["input_ids"], "max_tokens": about["max_new_tokens"]}
    return _read_vllm({**about, **named, "seed": about["sampling_seed"]})


def _read_llama_cpp(body: Mapping[str, Any]) -> _Asked:
    biases = {token: -100 if bias is False else bias for token, bias in body["logit_bias"]}
    named = {"max_tokens": body["n_predict"], "stop_token_ids": [], "logit_bias": biases}
    return _read_vllm({**body, **named})


def _write_vllm(ids: list[int], reason: str | None, stop: int | None) -> dict[str, Any]:
    # The last chunk of a completion that reached its length has no token of its own.
    new = ids[-1:] if reason != "length" else []
    return {"choices": [{"token_ids": new, "finish_reason": reason, "stop_reason": stop}]}


def _write_sglang(ids: list[int], reason: str | None, stop: int | None) -> dict[str, Any]:
    ended = None if reason is None else {"type": reason, "matched": stop}
    about = {"completion_tokens": len(ids), "finish_reason": ended}
    return {"output_ids": ids, "meta_info": about}


def _write_llama_cpp(ids: list[int], reason: str | None, _stop: int | None) -> dict[str, Any]:
    # An end-of-text is not sent as a token; without ids to stop at, nothing else is "stop".
    if reason is None:
        return {"content": "", "tokens": ids[-1:], "stop": False, "tokens_predicted": len(ids)}
    ended = {"stop": True, "stop_type": _STOP_TYPES[reason]}
    num_sent = len(ids) - (reason == "stop")
    return {"content": "", "tokens": [], **ended, "tokens_predicted": num_sent}


_STOP_TYPES = {"stop": "eos", "length": "limit"}
_READ = {"vllm": _read_vllm, "sglang": _read_sglang, "llama.cpp": _read_llama_cpp}
_WRITE = {"vllm": _write_vllm, "sglang": _write_sglang, "llama.cpp": _write_llama_cpp}
NO_KEY = (401, {"error": {"message": "no key"}})


class _Handler(QuietHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, StockTestServer)
        with suppress(OSError):  # the client is gone
            has_key = self.server.lets_in(self)
            send(self, *(self.server.page(self.path) if has_key else NO_KEY))

    def do_POST(self) -> None:
        assert isinstance(self.server, StockTestServer)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with suppress(OSError):
            if not self.server.lets_in(self):
                send(self, *NO_KEY)
            elif (found := self.server.tokens(self.path, body)) is not None:
                send(self, 200, found)
            elif self.path not in PATHS or body.get("text") is not None:
                send(self, 404, {})
            else:
                self.server.answer(self, body)
