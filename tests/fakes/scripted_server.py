"""An OpenAI-compatible server whose replies and failures follow a script: for tests and rehearsals.

It fails as real servers do: latency, 429, 5xx, replies that are cut off, wrong keys and models.
The same request always gets the same text, so that an interrupted run can be compared with an
uninterrupted one. No model writes its replies.
"""

from __future__ import annotations

import json
import sys
import threading
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, Self

from pasta_lm.learn.chat.pool import CHARACTERS_PER_TOKEN

PATH = "/v1/chat/completions"
FINGERPRINT = "scripted"
"""In every reply, whatever the model's name: figures made from such replies are no results."""
_ERROR = {"error": {"message": "the script says so", "code": None}}
ERRORS = {"too_many": (429, _ERROR), "server_error": (500, _ERROR)}
SHARES = ("too_many", "server_error", "truncated", "broken_off")


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    text: str
    logprobs: Mapping[str, float] = field(default_factory=dict)
    """Of the candidates of its only token."""
    refusal: str | None = None
    finish_reason: str = "stop"


Play = Callable[[Mapping[str, Any]], ScriptedReply]
"""From the body of a request to the reply; the same body must give the same reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Failures of the server: shares of all requests, drawn reproducibly from a seed."""

    latency_s: float = 0.0
    too_many: float = 0.0  # 429
    server_error: float = 0.0  # 500
    truncated: float = 0.0  # The JSON is incomplete.
    broken_off: float = 0.0  # The connection ends before the announced length.
    seed: int = 0

    def draw(self, number: int) -> str:
        """Return what happens to the request of this number: one of ``SHARES``, or ``ok``."""
        place = Random(f"{self.seed}/{number}").random()
        for name in SHARES:
            place -= getattr(self, name)
            if place < 0:
                return name
        return "ok"


class QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


class ThreadedServer(ThreadingHTTPServer):
    """A server on this machine, in threads of its own while its ``with`` block lasts."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, address: tuple[str, int], handler: type[QuietHandler], api_key: str | None
    ) -> None:
        self._authorization = None if api_key is None else f"Bearer {api_key}"
        self._lock = threading.Lock()
        self._closing = threading.Event()
        super().__init__(address, handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def lets_in(self, handler: QuietHandler) -> bool:
        """Return whether a request has the key."""
        return self._authorization in (None, handler.headers["Authorization"])

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self.shutdown()
        self.server_close()


class ScriptedServer(ThreadedServer):
    """An OpenAI-compatible server that follows a script.

    Attributes:
        num_requests: All requests, with the failed ones.
        paid: Complete answers of each request, by its messages as JSON.
    """

    def __init__(
        self, play: Play, faults: Faults | None = None, *, model: str = "scripted",
        api_key: str | None = None, address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:  # fmt: skip
        self.num_requests = 0
        self.paid: Counter[str] = Counter()
        self._play = play
        self._faults = faults or Faults()
        self._model = model
        super().__init__(address, _Handler, api_key)

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def answer(self, handler: QuietHandler, body: bytes) -> None:
        with self._lock:
            number = self.num_requests
            self.num_requests += 1
        self._closing.wait(self._faults.latency_s)
        refused = self._refuse(handler, body)
        if refused is None:
            self._reply(handler, json.loads(body), self._faults.draw(number))
        else:
            send(handler, refused[0], {"error": {"message": refused[1], "code": None}})

    def _reply(self, handler: QuietHandler, asked: Mapping[str, Any], outcome: str) -> None:
        if outcome in ERRORS:
            return send(handler, *ERRORS[outcome])
        messages = json.dumps(asked["messages"], sort_keys=True)
        reply = self._play(asked)
        body = completion(reply, asked, self._model)
        data = json.dumps(body).encode()
        half = data[: len(data) // 2]
        if outcome == "truncated":
            send(handler, 200, half)
        elif outcome == "broken_off":
            send(handler, 200, half, announced=len(data))
        else:
            with self._lock:
                self.paid[messages] += 1
            send(handler, 200, data)

    def _refuse(self, handler: QuietHandler, body: bytes) -> tuple[int, str] | None:
        if handler.path != PATH:
            return 404, f"no path {handler.path}"
        if not self.lets_in(handler):
            return 401, "wrong key"
        model = json.loads(body)["model"]
        return None if model == self._model else (404, f"no model {model}")


class _Handler(QuietHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, ScriptedServer)
        length = int(self.headers.get("Content-Length") or 0)
        with suppress(OSError):  # the client is gone
            self.server.answer(self, self.rfile.read(length))


def completion(reply: ScriptedReply, asked: Mapping[str, Any], model: str) -> dict[str, Any]:
    sent = "".join(one["content"] for one in asked["messages"])
    prompt, answer = (-(-len(text) // CHARACTERS_PER_TOKEN) for text in (sent, reply.text))
    content = None if reply.refusal else reply.text
    message = {"role": "assistant", "content": content, "refusal": reply.refusal}
    choice = {"index": 0, "finish_reason": reply.finish_reason, "message": message}
    if asked.get("logprobs"):
        choice["logprobs"] = _logprobs(reply.logprobs) if reply.logprobs else {"content": []}
    usage = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
    about = {"object": "chat.completion", "model": model, "system_fingerprint": FINGERPRINT}
    return {**about, "choices": [choice], "usage": usage}


def serve(play: Play) -> None:
    parser = ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server = ScriptedServer(play, address=("127.0.0.1", parser.parse_args().port))
    sys.stderr.write(f"{server.base_url}, model 'scripted'\n")
    server.serve_forever()


def _logprobs(candidates: Mapping[str, float]) -> dict[str, Any]:
    top = [{"token": token, "logprob": logprob} for token, logprob in candidates.items()]
    return {"content": [{**max(top, key=lambda each: each["logprob"]), "top_logprobs": top}]}


def send(
    handler: BaseHTTPRequestHandler, status: int, data: bytes | Mapping[str, Any],
    more: Mapping[str, str] | None = None, *, announced: int | None = None,
) -> None:  # fmt: skip
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", **(more or {})}.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data) if announced is None else announced))
    handler.end_headers()
    handler.wfile.write(data)
    handler.close_connection = True
