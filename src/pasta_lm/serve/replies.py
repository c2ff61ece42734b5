"""The replies of OpenAI's API: whole answers, and the pieces of a stream."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from pasta_lm.serve.logprobs import Spell, chat_logprobs, text_logprobs
from pasta_lm.serve.protocol import Asked, ChatRequest
from pasta_lm.view.run_data import LiveRun, run_data

# JSON allows them as they are, but some clients split lines there.
_LINE_BREAKS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
DONE = "data: [DONE]\n\n"

Json = dict[str, Any]


def sse(data: Json) -> str:
    """Return an object as one server-sent event; the number of a thread's event is its id."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    number = data.get("pasta", {}).get("seq")
    head = "" if number is None else f"id: {number}\n"
    return f"{head}data: {text.translate(_LINE_BREAKS)}\n\n"


@dataclass(slots=True)
class Reply:
    """One response to one client: its names, and what has been sent of it."""

    asked: Asked
    requests: Sequence[Request]  # one a prompt; the samples of each follow those before it
    model: str
    spell: Spell
    count_tokens: Callable[[str], int]
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = ""
    began_s: float = field(default_factory=time.monotonic)
    num_events: int = 0
    answers: dict[int, Answer] = field(default_factory=dict)
    orders: dict[int, ReadingOrder] = field(default_factory=dict)
    error: str | None = None  # the code of what ended it before all samples were finished
    live_runs: dict[int, LiveRun] = field(default_factory=dict)  # of samples that are traced

    def __post_init__(self) -> None:
        kind = "chatcmpl" if self.is_chat else "cmpl"
        self.id = self.id or f"{kind}-{secrets.token_hex(16)}"
        is_held = self.request.expansion is not None
        keeps_tags = self.asked.options.tags == "keep"
        for sample in range(sum(request.params.n for request in self.requests)):
            self.orders[sample] = ReadingOrder(keeps_tags=keeps_tags, is_held=is_held)

    @property
    def request(self) -> Request:
        """Return the first request; the others differ from it in their prompts and room."""
        return self.requests[0]

    @property
    def is_chat(self) -> bool:
        """Return whether the client asked with messages."""
        return isinstance(self.asked, ChatRequest)

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
        """Return what holds for this response, after everything was lowered to the bounds."""
        params, ignored = self.request.params, self.asked.not_shown
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

    # A whole answer

    def whole(self) -> Json:
        """Return the object of a finished answer."""
        choices = [self._choice(sample) for sample in sorted(self.answers)]
        figures = [self._figures(self.answers[sample]) for sample in sorted(self.answers)]
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {
            **self._head(kind),
            "choices": choices,
            "usage": self.usage(),
            "pasta": {**self.limits(), "choices": figures},
        }

    def _choice(self, sample: int) -> Json:
        answer = self.answers[sample]
        text = answer.program if self.asked.options.tags == "keep" else answer.text
        end = {"logprobs": self._logprobs(sample), "finish_reason": _reason(answer)}
        if self.is_chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            return {"index": sample, "message": message, **end}
        return {"index": sample, "text": text, **end}

    def _logprobs(self, sample: int) -> Json | None:
        if self.request.params.logprobs is None:
            return None
        shape = chat_logprobs if self.is_chat else text_logprobs
        return shape(self.answers[sample], self.spell)

    def _figures(self, answer: Answer) -> Json:
        trace, rate = answer.trace, answer.trace.tokens_per_s
        speedup = trace.speedup_over_text(self.count_tokens(answer.text))
        figures: Json = {
            "threads": [asdict(thread) for thread in trace.threads],
            "critical_path_tokens": trace.critical_path,
            "forward_passes": trace.forward_passes,
            "parallelism": round(trace.parallelism, 4),
            "theoretical_speedup": round(speedup, 4),
            "tokens_per_s": None if rate is None else round(rate, 2),
            "wall_s": round(trace.wall_s, 6),
        }
        if self.asked.options.trace:
            figures["trace"] = json.loads(trace.to_json())
            name, annotated = trace.strategy or "run", answer.document.annotator_form()
            figures["run"] = run_data(trace, name, annotated, spell=self.spell)
        return figures

    # A stream

    def first(self) -> str:
        """Return the beginning of a stream: the role, and the limits that hold."""
        delta: Json = {"role": "assistant", "content": ""}
        pieces = [self._piece(sample, delta) for sample in self.orders]
        pieces[0]["pasta"] = self.limits()
        return "".join(map(sse, pieces))

    def pieces(self, events: Sequence[StreamEvent]) -> str:
        """Return what a stream says about the events of one step."""
        self.take(events)
        written: list[Json] = []
        for sample, order in self.orders.items():
            own = [event for event in events if event.sample == sample]
            if not own:
                continue
            text = order.feed(own)
            if self.asked.options.stream == "events":
                written += self._events(sample, own, text)
            elif text:
                written.append(self._piece(sample, {"content": text}))
            if sample in self.answers and any(isinstance(event, Finished) for event in own):
                written.append(self._end(sample))
        return "".join(map(sse, written))

    def last(self) -> str:
        """Return the end of a stream: its usage, if the client wants it, and our figures."""
        if not self.asked.includes_usage:
            return ""
        end = {**self._head(self._kind), "choices": [], "usage": self.usage()}
        if self.asked.options.stream == "text":  # each event ``finished`` has them
            answers = [self.answers[sample] for sample in sorted(self.answers)]
            end["pasta"] = {"choices": [self._figures(answer) for answer in answers]}
        return sse(end)

    def _events(self, sample: int, events: Sequence[StreamEvent], text: str) -> Iterator[Json]:
        """Yield one piece an event; the last carries what reading order releases."""
        for place, event in enumerate(events, start=1):
            content = text if place == len(events) else ""
            self.num_events += 1
            facts = {
                **_facts(event),
                "seq": self.num_events,
                "t_ms": round(1000 * (time.monotonic() - self.began_s), 3),
            }
            if isinstance(event, Finished):
                facts |= self._figures(event.answer)
            elif isinstance(event, Traced):
                facts["news"] = self._live_run(sample).take(event.news)
            yield {**self._piece(sample, {"content": content}), "pasta": facts}

    def _live_run(self, sample: int) -> LiveRun:
        if sample not in self.live_runs:
            request = self.requests[sample // self.request.params.n]
            self.live_runs[sample] = LiveRun(len(request.prompt), self.spell)
        return self.live_runs[sample]

    def _end(self, sample: int) -> Json:
        piece = self._piece(sample, {}, _reason(self.answers[sample]))
        piece["choices"][0]["logprobs"] = self._logprobs(sample)
        return piece

    def _piece(self, sample: int, delta: Json, reason: str | None = None) -> Json:
        choice: Json = {"index": sample, "logprobs": None, "finish_reason": reason}
        if self.is_chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        piece = {**self._head(self._kind), "choices": [choice]}
        return piece | {"usage": None} if self.asked.includes_usage else piece

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _head(self, kind: str) -> Json:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": None}


def _reason(answer: Answer) -> str:
    return "length" if answer.finish_reason == "length" else "stop"


def _facts(event: StreamEvent) -> Json:
    """Return an event as the page reads it; every kind has the same five keys."""
    facts: Json = {"thread": getattr(event, "thread", 0), "parent": None, "delta": ""}
    match event:
        case Deferred(parent=parent):
            facts |= {"kind": "deferred", "parent": parent}
        case ThreadStarted():
            facts |= {"kind": "started", "parent": event.parent, "topic": event.topic}
            facts["promised_tokens"] = event.promised_tokens
        case TextDelta(text=text):
            facts |= {"kind": "text", "delta": text}
        case ThreadEnded(reason=reason):
            facts |= {"kind": "ended", "finish_reason": reason.value}
        case Synced(joined=joined):
            facts |= {"kind": "synced", "joined": list(joined)}
        case Traced():
            facts |= {"kind": "traced"}
        case Finished():
            facts |= {"kind": "finished"}
    return facts
