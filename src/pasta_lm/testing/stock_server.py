"""A stock server for tests: plain causal completions of token ids, streamed; it knows no tags.

It speaks the dialects of vLLM, SGLang and llama.cpp as far as ``remote.dialects`` uses them. What
decodes is a function from ids, and those that are barred, to the next id.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

NextToken = Callable[[Sequence[int], Set[int]], int]
"""From all ids so far, and the ids that may not be chosen, to the next one."""
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp"}
PATHS = {"/v1/completions": "vllm", "/generate": "sglang", "/completion": "llama.cpp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StockFaults:
    """Failures of the server."""

    num_refused: int = 0
    """The first completions get ``status``."""
    status: int = 429
    dies_after: int | None = None
    """Tokens of all completions together after which every connection breaks off."""
    hangs_after: int | None = None
    """Tokens of all completions together after which nothing more is sent."""
    pause_s: float = 0.0
    """Before each token."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A completion in no dialect."""

    prompt: Sequence[int]
    max_tokens: int
    barred: frozenset[int]
    stop_ids: frozenset[int]
    ignore_eos: bool


class StockTestServer(ThreadingHTTPServer):
    """The server, in threads of its own while its ``with`` block lasts.

    Attributes:
        prompts: The ids of every completion that was begun, in order.
        num_open: Completions that are being streamed.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        next_token: NextToken,
        eos_id: int,
        *,
        dialect: str = "vllm",
        faults: StockFaults | None = None,
    ) -> None:
        """Bind a free port of this machine."""
        self.prompts: list[Sequence[int]] = []
        self.num_open = 0
        self._next_token, self._eos_id = next_token, eos_id
        self._dialect, self._faults = dialect, faults or StockFaults()
        self._num_sent = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        """Return the address without ``/v1``."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        """Begin to answer."""
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop answering; open connections are cut."""
        self._closing.set()
        self.shutdown()
        self.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, body: Mapping[str, Any]) -> None:
        """Stream one completion."""
        dialect = PATHS[handler.path]
        asked = _READ[dialect](body)
        with self._lock:
            self.prompts.append(asked.prompt)
            is_refused = len(self.prompts) <= self._faults.num_refused
            self.num_open += 1
        try:
            if is_refused:
                _send(handler, self._faults.status, {"error": {"message": "the script says so"}})
                return
            handler.send_response(200)
            handler.send_header("Content-Type", "text/event-stream")
            handler.end_headers()
            for chunk in self._chunks(asked, _WRITE[dialect]):
                handler.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                handler.wfile.flush()
        finally:
            with self._lock:
                self.num_open -= 1

    def _chunks(self, asked: _Asked, write: _Write) -> Iterator[dict[str, Any]]:
        ids: list[int] = []
        while len(ids) < asked.max_tokens:
            self._closing.wait(self._faults.pause_s)
            barred = asked.barred | ({self._eos_id} if asked.ignore_eos else set())
            token = self._next_token([*asked.prompt, *ids], barred)
            if not self._may_send():
                return
            ids.append(token)
            if token == self._eos_id or token in asked.stop_ids:
                yield write(ids, "stop", None if token == self._eos_id else token)
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

    def models(self) -> dict[str, Any]:
        """Return the reply to ``/v1/models``."""
        return {"data": [{"id": "stock", "owned_by": OWNERS[self._dialect]}]}


_Write = Callable[[list[int], str | None, int | None], dict[str, Any]]


def _read_vllm(body: Mapping[str, Any]) -> _Asked:
    barred = frozenset(int(token) for token, bias in body["logit_bias"].items() if bias <= -100)
    stops = frozenset(body["stop_token_ids"])
    return _Asked(body["prompt"], body["max_tokens"], barred, stops, body["ignore_eos"])


def _read_sglang(body: Mapping[str, Any]) -> _Asked:
    about = body["sampling_params"]
    return _read_vllm({**about, "prompt": body["input_ids"], "max_tokens": about["max_new_tokens"]})


def _read_llama_cpp(body: Mapping[str, Any]) -> _Asked:
    barred = frozenset(token for token, is_allowed in body["logit_bias"] if is_allowed is False)
    return _Asked(body["prompt"], body["n_predict"], barred, frozenset(), body["ignore_eos"])


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
        return {"content": "", "tokens": ids[-1:], "stop": False}
    return {"content": "", "tokens": [], "stop": True, "stop_type": _STOP_TYPES[reason]}


_STOP_TYPES = {"stop": "eos", "length": "limit"}
_READ = {"vllm": _read_vllm, "sglang": _read_sglang, "llama.cpp": _read_llama_cpp}
_WRITE = {"vllm": _write_vllm, "sglang": _write_sglang, "llama.cpp": _write_llama_cpp}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, StockTestServer)
        with suppress(OSError):  # the client is gone
            _send(self, 200, self.server.models())

    def do_POST(self) -> None:
        assert isinstance(self.server, StockTestServer)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with suppress(OSError):
            self.server.answer(self, body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _send(handler: BaseHTTPRequestHandler, status: int, data: Mapping[str, Any]) -> None:
    text = json.dumps(data).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text)
