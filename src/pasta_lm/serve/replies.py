"""The replies of OpenAI's API: whole answers, and the pieces of a stream."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pasta_lm.engines.reading_order import ReadingOrder
from pasta_lm.engines.request import (
    Answer,
    Deferred,
    Finished,
    Request,
    StreamEvent,
    Synced,
    TextDelta,
    ThreadEnded,
    ThreadStarted,
    Traced,
)
from pasta_lm.serve.backends import Backend
from pasta_lm.serve.logprobs import chat_logprobs, text_logprobs
from pasta_lm.serve.protocol import AnyRequest, ChatRequest
from pasta_lm.view.comparison import speed_figures
from pasta_lm.view.run_data import LiveRun, run_data

# JSON allows them as they are, but some clients split lines there.
_LINE_BREAKS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]


def sse(data: Json) -> bytes:
    """Return an object as one server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data: {text.translate(_LINE_BREAKS)}\n\n".encode()


@dataclass(slots=True)
class Reply:
    """One reply to one client: its names, and the part of it that was sent."""

    body: AnyRequest
    requests: Sequence[Request]  # one a prompt; the samples of each follow those before it
    backend: Backend
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    began_s: float = field(default_factory=time.monotonic)
    num_events: int = 0
    answers: dict[int, Answer] = field(default_factory=dict)
    orders: dict[int, ReadingOrder] = field(default_factory=dict)
    live_runs: dict[int, LiveRun] = field(default_factory=dict)  # of samples that are traced
    error: str | None = None  # the code of the error that ended it
    extra: Callable[[Answer], Json] = lambda _: {}
    """Further figures of an answer."""

    def __post_init__(self) -> None:
        kind = "chatcmpl" if self.is_chat else "cmpl"
        self.id = self.id or f"{kind}-{secrets.token_hex(16)}"
        is_held = self.request.expansion is not None
        keeps_tags = self.body.options.tags == "keep"
        for sample in range(sum(request.params.n for request in self.requests)):
            self.orders[sample] = ReadingOrder(keeps_tags=keeps_tags, is_held=is_held)

    @property
    def request(self) -> Request:
        """Return the first request; the others differ from it in their prompts and room."""
        return self.requests[0]

    @property
    def is_chat(self) -> bool:
        """Return whether the client sent messages."""
        return isinstance(self.body, ChatRequest)

    @property
    def is_complete(self) -> bool:
        """Return whether every sample is finished."""
        return len(self.answers) == len(self.orders)

    def take(self, events: Iterable[StreamEvent]) -> None:
        """Keep the finished answers among the events."""
        for event in events:
            if isinstance(event, Finished):
                self.answers[event.sample] = event.answer

    def limits(self) -> Json:
        """Return the limits of this response, after everything was lowered to the bounds."""
        params, ignored = self.request.params, self.body.not_shown
        return {
            "strategy": self.request.strategy,
            "seed": params.seed,
            "max_tokens": params.max_tokens,
            "max_threads": params.max_threads,
            "max_tokens_per_thread": params.max_tokens_per_thread,
            **({"ignored": ignored} if ignored else {}),
        }

    def usage(self) -> dict[str, int]:
        """Return the tokens of all samples; each prompt counts once."""
        num_prompt = sum(len(request.prompt) for request in self.requests)
        num_decoded = sum(answer.trace.num_tokens for answer in self.answers.values())
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_decoded,
            "total_tokens": num_prompt + num_decoded,
        }

    def figures(self, answer: Answer) -> Json:
        """Return the figures of an answer, and its trace and run if the client wants them."""
        figures: Json = {
            "threads": [asdict(thread) for thread in answer.trace.threads],
            "forward_passes": answer.trace.forward_passes,
            **speed_figures(answer.trace, self.backend.count_tokens(answer.text)),
        }
        if self.body.options.trace:
            figures["trace"] = json.loads(answer.trace.to_json())
            figures["run"] = run_data(answer.trace, "", answer.document.annotator_form())
        return figures | self.extra(answer)

    # A whole answer

    def whole(self) -> Json:
        """Return the object of a finished answer."""
        choices = [self._choice(sample) for sample in sorted(self.answers)]
        figures = [self.figures(self.answers[sample]) for sample in sorted(self.answers)]
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {
            **self._head(kind),
            "choices": choices,
            "usage": self.usage(),
            "pasta": {**self.limits(), "choices": figures},
        }

    def _choice(self, sample: int) -> Json:
        answer = self.answers[sample]
        text = answer.program if self.body.options.tags == "keep" else answer.text
        end = {"logprobs": self._logprobs(sample), "finish_reason": _finish_reason(answer)}
        if self.is_chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            return {"index": sample, "message": message, **end}
        return {"index": sample, "text": text, **end}

    def _logprobs(self, sample: int) -> Json | None:
        if self.request.params.logprobs is None:
            return None
        shape = chat_logprobs if self.is_chat else text_logprobs
        return shape(self.answers[sample], self.backend.spell)

    # A stream

    def first(self) -> bytes:
        """Return the beginning of a stream: the role, and the limits."""
        pieces = [
            self._piece(sample, {"role": "assistant", "content": ""}) for sample in self.orders
        ]
        pieces[0]["pasta"] = self.limits()
        return b"".join(map(sse, pieces))

    def pieces(self, events: Sequence[StreamEvent]) -> bytes:
        """Return the pieces for the events of one step."""
        self.take(events)
        pieces: list[Json] = []
        for sample, order in self.orders.items():
            own = [event for event in events if event.sample == sample]
            if not own:
                continue
            text = order.feed(own)
            if self.body.options.stream == "events":
                pieces += self._events(sample, own, text)
            elif text:
                pieces.append(self._piece(sample, {"content": text}))
            if sample in self.answers and any(isinstance(event, Finished) for event in own):
                pieces.append(self._end(sample))
        return b"".join(map(sse, pieces))

    def last(self) -> bytes:
        """Return the end of a stream: its usage, if the client wants it, and the figures."""
        if not self.body.includes_usage:
            return b""
        end = {**self._head(self._kind), "choices": [], "usage": self.usage()}
        if self.body.options.stream == "text":  # each event ``finished`` has them
            answers = [self.answers[sample] for sample in sorted(self.answers)]
            end["pasta"] = {"choices": [self.figures(answer) for answer in answers]}
        return sse(end)

    def _events(self, sample: int, events: Sequence[StreamEvent], text: str) -> Iterator[Json]:
        """Yield one piece an event; the last carries the text that reading order releases."""
        for place, event in enumerate(events, start=1):
            content = text if place == len(events) else ""
            self.num_events += 1
            facts = {
                **_event_facts(event),
                "seq": self.num_events,
                "t_ms": round(1000 * (time.monotonic() - self.began_s), 3),
            }
            if isinstance(event, Finished):
                facts |= self.figures(event.answer)
            elif isinstance(event, Traced):
                facts["news"] = self._live_run(sample).take(event.news)
            yield {**self._piece(sample, {"content": content}), "pasta": facts}

    def _live_run(self, sample: int) -> LiveRun:
        if sample not in self.live_runs:
            request = self.requests[sample // self.request.params.n]
            self.live_runs[sample] = LiveRun(len(request.prompt))
        return self.live_runs[sample]

    def _end(self, sample: int) -> Json:
        piece = self._piece(sample, {}, _finish_reason(self.answers[sample]))
        piece["choices"][0]["logprobs"] = self._logprobs(sample)
        return piece

    def _piece(self, sample: int, delta: Mapping[str, str], reason: str | None = None) -> Json:
        choice: Json = {"index": sample, "logprobs": None, "finish_reason": reason}
        if self.is_chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        piece = {**self._head(self._kind), "choices": [choice]}
        return piece | {"usage": None} if self.body.includes_usage else piece

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _head(self, kind: str) -> Json:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.backend.name}
        return {**head, "system_fingerprint": None}


def _finish_reason(answer: Answer) -> str:
    return "length" if answer.finish_reason == "length" else "stop"


def _event_facts(event: StreamEvent) -> Json:
    """Return an event for the page; every kind has the keys thread, parent, delta and kind."""
    facts: Json = {"thread": 0, "parent": None, "delta": ""}
    match event:
        case Deferred(thread=thread, parent=parent):
            facts |= {"kind": "deferred", "thread": thread, "parent": parent}
        case ThreadStarted(thread=thread, parent=parent):
            facts |= {"kind": "started", "thread": thread, "parent": parent, "topic": event.topic}
            facts["promised_tokens"] = event.promised_tokens
        case TextDelta(thread=thread, text=text):
            facts |= {"kind": "text", "thread": thread, "delta": text}
        case ThreadEnded(thread=thread, reason=reason):
            facts |= {"kind": "ended", "thread": thread, "finish_reason": reason.value}
        case Synced(thread=thread, joined=joined):
            facts |= {"kind": "synced", "thread": thread, "joined": list(joined)}
        case Traced():
            facts |= {"kind": "traced"}
        case Finished():
            facts |= {"kind": "finished"}
    return facts
