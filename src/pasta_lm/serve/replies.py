"""The replies of OpenAI's API: whole answers, the pieces of a stream, log-probabilities.

Log-probabilities are those of the model alone, before the mask of legal tags, penalties and
temperature, for the tokens of the plain text in reading order; tags have none.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, count
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
    TokenLogprobs,
    Traced,
)
from pasta_lm.interpreter.trace import Role
from pasta_lm.serve.backends import Backend
from pasta_lm.serve.protocol import AnyRequest, ChatCompletionRequest
from pasta_lm.view.run_data import LiveRun, run_data, speed_figures

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
    live_runs: dict[int, LiveRun] = field(default_factory=dict)
    error: str | None = None  # the code of the error that ended it
    extra: Callable[[Answer], Json] = lambda _: {}  # further figures of an answer

    def __post_init__(self) -> None:
        kind = "chatcmpl" if self.is_chat else "cmpl"
        self.id = self.id or f"{kind}-{secrets.token_hex(16)}"
        is_held = self.request.expansion is not None
        keeps_tags = self.body.options.tags == "keep"
        for request in self.requests:
            for sample in range(len(self.orders), len(self.orders) + request.params.n):
                self.orders[sample] = ReadingOrder(keeps_tags=keeps_tags, is_held=is_held)
                self.live_runs[sample] = LiveRun(len(request.prompt))

    @property
    def finished(self) -> list[Answer]:
        """Return the finished answers by the number of their sample."""
        return [self.answers[sample] for sample in sorted(self.answers)]

    @property
    def request(self) -> Request:
        """Return the first request; the others differ from it in their prompts and room."""
        return self.requests[0]

    @property
    def is_chat(self) -> bool:
        """Return whether the client sent messages."""
        return isinstance(self.body, ChatCompletionRequest)

    @property
    def is_complete(self) -> bool:
        """Return whether every sample is finished."""
        return len(self.answers) == len(self.orders)

    def take(self, events: Iterable[StreamEvent]) -> None:
        """Keep the finished answers among the events."""
        finished = (event for event in events if isinstance(event, Finished))
        self.answers |= {event.sample: event.answer for event in finished}

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

    def usage(self) -> Json:
        """Return the tokens of all samples; each prompt counts once."""
        num_prompt = sum(len(request.prompt) for request in self.requests)
        num_decoded = sum(answer.trace.num_tokens for answer in self.answers.values())
        first = [
            answer for sample, answer in self.answers.items() if sample % (self.body.n or 1) == 0
        ]
        num_cached = sum(answer.trace.num_cached_tokens for answer in first)
        return {
            "prompt_tokens": num_prompt,
            "prompt_tokens_details": {"cached_tokens": num_cached},
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
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(sample) for sample in sorted(self.answers)],
            "usage": self.usage(),
            "pasta": {**self.limits(), "choices": [*map(self.figures, self.finished)]},
        }

    def _choice(self, sample: int) -> Json:
        answer = self.answers[sample]
        text = answer.program if self.body.options.tags == "keep" else answer.text
        end = {"logprobs": self._logprobs(sample), "finish_reason": _finish_reason(answer)}
        message = {"role": "assistant", "content": text, "refusal": None}
        content = {"message": message} if self.is_chat else {"text": text}
        return {"index": sample, **content, **end}

    def _logprobs(self, sample: int) -> Json | None:
        if self.request.params.logprobs is None:
            return None
        shape = _chat_logprobs if self.is_chat else _text_logprobs
        return shape(self.answers[sample], self.backend.spell)

    # A stream

    def first(self) -> bytes:
        """Return the beginning of a stream: the role, and the limits."""
        delta = {"role": "assistant", "content": ""}
        pieces = [self._piece(sample, delta) for sample in self.orders]
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
            if any(isinstance(event, Finished) for event in own):
                end = self._piece(sample, {}, _finish_reason(self.answers[sample]))
                end["choices"][0]["logprobs"] = self._logprobs(sample)
                pieces.append(end)
        return b"".join(map(sse, pieces))

    def last(self) -> bytes:
        """Return the end of a stream: its usage, if the client wants it, and the figures."""
        if not self.body.includes_usage:
            return b""
        end = {**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage()}
        if self.body.options.stream == "text":  # each event ``finished`` has them
            end["pasta"] = {"choices": [*map(self.figures, self.finished)]}
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
                facts["news"] = self.live_runs[sample].take(event.news)
            yield {**self._piece(sample, {"content": content}), "pasta": facts}

    def _piece(self, sample: int, delta: Mapping[str, str], reason: str | None = None) -> Json:
        choice: Json = {"index": sample, "logprobs": None, "finish_reason": reason}
        if self.is_chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        piece = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return piece | {"usage": None} if self.body.includes_usage else piece

    def _head(self, chat_kind: str) -> Json:
        return {
            "id": self.id,
            "object": chat_kind if self.is_chat else "text_completion",
            "created": self.created,
            "model": self.backend.name,
            "system_fingerprint": None,
        }


def _finish_reason(answer: Answer) -> str:
    return "length" if answer.finish_reason == "length" else "stop"


def _event_facts(event: StreamEvent) -> Json:
    """Return an event for the page; every kind has the keys thread, parent, delta and kind."""
    facts: Json = {"thread": 0, "parent": None, "delta": ""}
    match event:
        case Deferred(thread=thread, parent=parent):
            return {**facts, "kind": "deferred", "thread": thread, "parent": parent}
        case ThreadStarted(thread=thread, parent=parent):
            facts |= {"kind": "started", "thread": thread, "parent": parent}
            return {**facts, "topic": event.topic, "promised_tokens": event.promised_tokens}
        case TextDelta(thread=thread, text=text):
            return {**facts, "kind": "text", "thread": thread, "delta": text}
        case ThreadEnded(thread=thread, reason=reason):
            return {**facts, "kind": "ended", "thread": thread, "finish_reason": reason.value}
        case Synced(thread=thread, joined=joined):
            return {**facts, "kind": "synced", "thread": thread, "joined": list(joined)}
    return {**facts, "kind": "traced" if isinstance(event, Traced) else "finished"}


def _tokens(answer: Answer) -> Iterator[tuple[int, TokenLogprobs]]:
    """Yield the tokens of the plain text, those behind a stop string left out."""
    left = len(answer.text)
    # Without points a skeleton is the answer itself, of tokens that were no content before.
    role = Role.CONTENT if answer.trace.num_content_tokens else Role.TOPIC
    indices: dict[int, count[int]] = defaultdict(count)  # each thread is in order by itself
    for record in answer.trace.in_reading_order():
        scores = answer.logprobs.get((record.thread, next(indices[record.thread])))
        if record.role is not role or record.token is None or scores is None:
            continue
        if left <= 0:
            return
        left -= len(record.text)
        yield record.token, scores


def _chat_logprobs(answer: Answer, spell: Callable[[int], bytes]) -> Json:
    def shown(token: int, logprob: float) -> Json:
        data = spell(token)
        text = data.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(data)}

    content = [
        {**shown(token, scores.logprob), "top_logprobs": [shown(*pair) for pair in scores.top]}
        for token, scores in _tokens(answer)
    ]
    return {"content": content, "refusal": None}


def _text_logprobs(answer: Answer, spell: Callable[[int], bytes]) -> Json:
    """Return the log-probabilities of a completion; offsets count characters."""

    def text(token: int) -> str:
        return spell(token).decode("utf-8", "replace")

    tokens = list(_tokens(answer))
    texts = [text(token) for token, _ in tokens]
    tops = [{text(token): value for token, value in scores.top} for _, scores in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [scores.logprob for _, scores in tokens],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": [0, *accumulate(map(len, texts))][: len(texts)],
    }
