"""An OpenAI-compatible server whose replies and failures follow a script: for tests and rehearsals.

It fails as real servers do: latency, storms of 429, errors of its own, silence, replies that are
cut off, refusals, wrong keys and models. The same request always gets the same text, so a run that
was interrupted can be compared with one that was not. Its replies are played, never a model's.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, Self

from pasta_lm.remote.chat import TokenLogprob

PATH = "/v1/chat/completions"
FINGERPRINT = "scripted"
"""Stands in every reply, whatever the model is called: figures made of such replies are none."""
CHARACTERS_PER_TOKEN = 4
"""By which the server counts what it bills."""


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """What the scripted model says."""

    text: str
    logprobs: Sequence[TokenLogprob] = ()
    refusal: str | None = None
    finish_reason: str = "stop"


Play = Callable[[Mapping[str, Any]], ScriptedReply]
"""From the body of a request to the reply; the same body must give the same reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How the server fails; shares are of all requests and are drawn, the same for a seed."""

    latency_s: float = 0.0
    refusal_latency_s: float | None = None
    """Of 429 and 500, which real servers mostly send soon; None: as for a reply."""
    too_many: float = 0.0
    """Share of 429."""
    server_error: float = 0.0
    """Share of 500."""
    hang: float = 0.0
    """Share that is never answered."""
    truncated: float = 0.0
    """Share whose JSON ends too early."""
    broken_off: float = 0.0
    """Share whose connection ends before the announced length."""
    refusal: float = 0.0
    """Share in which the model declines; like the texts, it depends on the request alone."""
    storm_every: int = 0
    """A storm of 429 begins each time that so many requests have come; 0: never."""
    storm_length: int = 0
    """Requests that a storm refuses."""
    max_in_flight: int | None = None
    """More at once get 429."""
    retry_after_s: float | None = None
    """Sent with every 429."""
    seed: int = 0

    def draw(self, number: int) -> str:
        """Return what happens to the request of this number: a fault, or ``ok``."""
        if self.storm_every and number % self.storm_every < self.storm_length:
            return "too_many"
        place = Random(f"{self.seed}/{number}").random()
        for name in ("too_many", "server_error", "hang", "truncated", "broken_off"):
            place -= getattr(self, name)
            if place < 0:
                return name
        return "ok"

    def latency_of(self, outcome: str) -> float:
        """Return how long the server waits before something happens; seconds."""
        is_soon = self.refusal_latency_s is not None and outcome in ("too_many", "server_error")
        return self.refusal_latency_s or 0.0 if is_soon else self.latency_s


class ScriptedServer:
    """The server, in threads of its own while its ``with`` block lasts.

    Attributes:
        outcomes: How many requests ended how: ``ok``, ``refusal``, a fault's name, or a status.
        paid: How often each request was answered whole, by its messages as JSON.
    """

    def __init__(
        self,
        play: Play,
        faults: Faults | None = None,
        *,
        model: str = "scripted",
        api_key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Bind a port, a free one if none is named; nothing is answered yet."""
        self.outcomes: Counter[str] = Counter()
        self.paid: Counter[str] = Counter()
        self.most_in_flight = 0
        self._play = play
        self._faults = faults or Faults()
        self._model, self._api_key = model, api_key
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._num_seen = 0
        self._num_in_flight = 0
        self._http = ThreadingHTTPServer((host, port), self._handler())
        self._http.daemon_threads = True
        self._http.block_on_close = False

    @property
    def base_url(self) -> str:
        """Return what a client calls ``base_url``."""
        host, port = self._http.server_address[:2]
        return f"http://{host!s}:{port}/v1"

    @property
    def num_requests(self) -> int:
        """Return how many requests have come, failed ones counted."""
        return self._num_seen

    def __enter__(self) -> Self:
        """Begin to answer."""
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop answering; who still waits is cut off."""
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()

    def serve_forever(self) -> None:
        """Answer until the process is interrupted."""
        self._http.serve_forever()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                try:
                    server._answer(self, self.rfile.read(length))
                except OSError:
                    server._count("client gone")

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: the counts say it."""

        return Handler

    def _answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        with self._lock:
            number = self._num_seen
            self._num_seen += 1
            self._num_in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._num_in_flight)
            is_full = self._num_in_flight > (self._faults.max_in_flight or self._num_in_flight)
        try:
            outcome = "too_many" if is_full else self._faults.draw(number)
            self._closing.wait(self._faults.latency_of(outcome))
            self._respond(handler, body, outcome)
        finally:
            with self._lock:
                self._num_in_flight -= 1

    def _respond(self, handler: BaseHTTPRequestHandler, body: bytes, outcome: str) -> None:
        refused = self._refuse(handler, body)
        if refused is not None:
            self._count(str(refused[0]))
            _send(handler, refused[0], _error(refused[1]))
            return
        asked: Mapping[str, Any] = json.loads(body)
        if outcome == "too_many":
            self._count(outcome)
            wait_s = self._faults.retry_after_s
            more = {} if wait_s is None else {"Retry-After": f"{wait_s:g}"}
            _send(handler, 429, _error("too many requests"), more)
        elif outcome == "server_error":
            self._count(outcome)
            _send(handler, 500, _error("the script says so"))
        elif outcome == "hang":
            self._count(outcome)
            self._closing.wait()
        else:
            self._reply(handler, asked, outcome)

    def _reply(
        self, handler: BaseHTTPRequestHandler, asked: Mapping[str, Any], outcome: str
    ) -> None:
        messages = json.dumps(asked["messages"], sort_keys=True)
        reply = self._play(asked)
        if Random(f"{self._faults.seed}/{messages}").random() < self._faults.refusal:
            reply = ScriptedReply("", refusal="I would rather not.")
        data = json.dumps(completion(reply, asked, self._model)).encode()
        if outcome == "truncated":
            _send(handler, 200, data[: len(data) // 2])
        elif outcome == "broken_off":
            _send(handler, 200, data[: len(data) // 2], announced=len(data))
        else:
            outcome = "refusal" if reply.refusal else outcome
            with self._lock:
                self.paid[messages] += 1
            _send(handler, 200, data)
        self._count(outcome)

    def _refuse(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, str] | None:
        if handler.path != PATH:
            return 404, f"no path {handler.path}"
        authorization = handler.headers.get("Authorization", "")
        if self._api_key is not None and authorization != f"Bearer {self._api_key}":
            return 401, "wrong key"
        try:
            asked = json.loads(body)
            messages = [str(one["role"] + one["content"]) for one in asked["messages"]]
        except (ValueError, KeyError, TypeError):
            return 400, "the body is no chat request"
        if asked.get("model") != self._model:
            return 404, f"no model {asked.get('model')}"
        return None if messages else (400, "no messages")

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1


def completion(reply: ScriptedReply, asked: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the JSON of a reply, as OpenAI has it."""
    said = "".join(one["content"] for one in asked["messages"])
    prompt, answer = (-(-len(text) // CHARACTERS_PER_TOKEN) for text in (said, reply.text))
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": reply.finish_reason,
        "message": {
            "role": "assistant",
            "content": None if reply.refusal else reply.text,
            "refusal": reply.refusal,
        },
    }
    if asked.get("logprobs"):
        choice["logprobs"] = {"content": [_logprob(one) for one in reply.logprobs]}
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
    }
    return {
        "object": "chat.completion",
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "choices": [choice],
        "usage": usage,
    }


def _logprob(one: TokenLogprob) -> dict[str, Any]:
    top = [{"token": token, "logprob": logprob} for token, logprob in one.top]
    return {"token": one.token, "logprob": one.logprob, "top_logprobs": top}


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "scripted", "code": None}}).encode()


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    data: bytes,
    more: Mapping[str, str] | None = None,
    *,
    announced: int | None = None,
) -> None:
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", **(more or {})}.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data) if announced is None else announced))
    handler.end_headers()
    handler.wfile.write(data)
    handler.close_connection = True
