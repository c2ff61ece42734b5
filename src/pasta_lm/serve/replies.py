"""The replies of OpenAI's API: whole answers, the pieces of a stream, log-probabilities.

Log-probabilities are those of the model alone, before the mask of legal tags, penalties and
temperature, for the tokens of the plain text in reading order; tags have none.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import accumulate, count

from pasta_lm.engines.reading_order import ReadingOrder
from pasta_lm.engines.request import (
    Answer,
    Deferred,
    Finished,
    Request,
    StreamEvent,
    Synced,
    TextDelta,
    ThoughtDelta,
    ThreadEnded,
    ThreadStarted,
    TokenLogprobs,
    Traced,
)
from pasta_lm.interpreter.trace import Role
from pasta_lm.parts import declared as parts
from pasta_lm.serve.backends import Backend
from pasta_lm.serve.errors import ApiError, Json, internal
from pasta_lm.serve.jobs import ResponseStream
from pasta_lm.serve.protocol import AnyRequest, ChatCompletionRequest
from pasta_lm.view.run_data import LiveRun, run_data, speed_figures

log = logging.getLogger(__name__)

# JSON allows them as they are, but some clients split lines there.
_LINE_BREAKS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
DONE = b"data: [DONE]\n\n"


def sse(data: Json) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data: {text.translate(_LINE_BREAKS)}\n\n".encode()


class Reply:
    """One reply to one client, whole or as a stream of server-sent events."""

    def __init__(self, body: AnyRequest, requests: Iterable[Request], backend: Backend) -> None:
        """Prepare the reply to requests, one a prompt; their samples are numbered in order."""
        options = body.options
        traces = bool(body.stream) and options.stream == "events" and options.trace
        self.body, self.backend = body, backend
        self.requests = [replace(request, traces=traces) for request in requests]
        self.request = self.requests[0]  # the others differ from it in their prompts and room
        self.is_chat = isinstance(body, ChatCompletionRequest)
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(16)}"
        self.created, self._began_s = int(time.time()), time.monotonic()
        self.answers: dict[int, Answer] = {}  # the finished ones by their sample
        self._num_events = 0
        self._sends_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._keeps_tags = options.tags == "keep"
        is_held = self.request.expansion is not None
        samples = [request for request in self.requests for _ in range(request.params.n)]
        self._schema = schema = body.schema_of_parts
        self._orders = [
            ReadingOrder(keeps_tags=self._keeps_tags, is_held=is_held)
            if schema is None
            else parts.FilledText(schema)
            for _ in samples
        ]
        self._filled: dict[int, parts.PartsAnswer] = {}  # of a schema of parts
        self._readers = [body.call_reader(backend.tools) for _ in samples]
        self._live_runs = [LiveRun(len(request.prompt)) for request in samples]

    async def whole(self, batches: ResponseStream) -> Json:
        while not self.is_complete:
            self._take(await batches.next())
        return self._whole()

    async def stream(self, batches: ResponseStream) -> AsyncIterator[bytes]:
        """Yield the server-sent events; ``[DONE]`` is always last."""
        try:
            opening = self._first()
            if self.body.options.stream == "events":
                yield opening
                opening = b""
            while not self.is_complete:
                # Clients take the first piece for the first token: it goes with the first text.
                if pieces := self._pieces(await batches.next()):
                    yield opening + pieces
                    opening = b""
            if self._sends_usage:
                yield sse(self._last())
        except ApiError as error:
            yield sse(error.body)
        except Exception:
            log.exception("a stream failed")
            yield sse(internal("internal_error").body)
        yield DONE

    @property
    def is_complete(self) -> bool:
        return len(self.answers) == len(self._orders)

    def log_facts(self) -> Json:
        """Return the figures for the log, which has no text of an answer."""
        answers = [self.answers[sample] for sample in sorted(self.answers)]
        return {
            "strategy": self.request.strategy, **self._usage(),
            "finish_reasons": [answer.finish_reason for answer in answers],
            "num_threads": [len(answer.trace.threads) for answer in answers],
            "parallelism": [round(answer.trace.parallelism, 3) for answer in answers],
        }  # fmt: skip

    def _take(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, Finished):
                self.answers[event.sample] = event.answer
                if self._schema is not None:
                    document = self.body.documents[event.sample // self.request.params.n]
                    filled = self.backend.filled(event.answer, self._schema, document)
                    self._filled[event.sample] = filled

    def _usage(self) -> Json:
        """Return the tokens of all samples; each prompt counts once."""
        num_prompt = sum(len(request.prompt) for request in self.requests)
        num_decoded = sum(answer.trace.num_tokens for answer in self.answers.values())
        firsts = self.answers.keys() & range(0, len(self._orders), self.request.params.n)
        num_cached = sum(self.answers[sample].trace.num_cached_tokens for sample in firsts)
        thought = sum(answer.trace.num_thought_tokens for answer in self.answers.values())
        return {
            "prompt_tokens": num_prompt, "prompt_tokens_details": {"cached_tokens": num_cached},
            "completion_tokens": num_decoded, "total_tokens": num_prompt + num_decoded,
            **({"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}),
        }  # fmt: skip

    def figures(self, sample: int) -> Json:
        """Return the figures of an answer, and its trace and run if the client wants them."""
        answer, text = self.answers[sample], self._text_of_parts(sample)
        figures: Json = {
            "threads": [asdict(thread) for thread in answer.trace.threads],
            "forward_passes": answer.trace.forward_passes,
            **self._of_parts(sample),
            **speed_figures(answer.trace, self.backend.count_tokens(text or answer.text)),
        }
        if self.body.options.trace:
            figures["trace"] = json.loads(answer.trace.to_json())
            figures["run"] = run_data(answer.trace, text=text)
        return figures

    def _text_of_parts(self, sample: int) -> str | None:
        return self._filled[sample].text if sample in self._filled else None

    def _of_parts(self, sample: int) -> Json:
        """Return the unfinished parts, and their confidence and spans if they are wanted."""
        if (filled := self._filled.get(sample)) is None:
            return {}
        cut = {"unfinished": [*filled.unfinished]} if filled.unfinished else {}
        wants = [name for name in ("confidence", "spans") if getattr(self.body.options, name)]
        return cut | {name: getattr(filled, name) for name in wants}

    def _limits(self) -> Json:
        params = self.request.params
        return {
            "strategy": self.request.strategy, "seed": params.seed, "max_tokens": params.max_tokens,
            "max_threads": params.max_threads,
            "max_tokens_per_thread": params.max_tokens_per_thread,
            **({"ignored": names} if (names := self.body.left_out(self.backend.tools)) else {}),
        }  # fmt: skip

    # A whole answer

    def _whole(self) -> Json:
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(sample) for sample in sorted(self.answers)],
            "usage": self._usage(),
            "pasta": {**self._limits(), **self._figures()},
        }

    def _choice(self, sample: int) -> Json:
        answer, reader = self.answers[sample], self._readers[sample]
        text = answer.program if self._keeps_tags else answer.text
        text = self._text_of_parts(sample) or text
        thought = {} if answer.reasoning is None else {"reasoning_content": answer.reasoning}
        message: Json = {"role": "assistant", "content": text, "refusal": None, **thought}
        if reader is not None:
            content, calls = reader.feed(text, is_end=True)
            message["content"] = content or (None if calls else "")
            message |= {"tool_calls": [call.shown() for call in calls]} if calls else {}
        return {
            "index": sample,
            **({"message": message} if self.is_chat else {"text": text}),
            "logprobs": self._logprobs(answer),
            "finish_reason": self._finish_reason(sample),
        }

    def _finish_reason(self, sample: int) -> str:
        answer, filled = self.answers[sample], self._filled.get(sample)
        reasons = {answer.finish_reason, *(thread.finish_reason for thread in answer.trace.threads)}
        if "length" in reasons or (filled and filled.unfinished):
            return "length"
        reader = self._readers[sample]
        return "tool_calls" if reader is not None and reader.num_calls else "stop"

    def _logprobs(self, answer: Answer) -> Json | None:
        if self.request.params.logprobs is None:
            return None
        return (_chat_logprobs if self.is_chat else _text_logprobs)(answer, self.backend.spell)

    # A stream

    def _first(self) -> bytes:
        """Return the beginning of a stream: the role, and the limits."""
        delta: Json = {"role": "assistant", "content": ""}
        pieces = [self._piece(sample, delta) for sample in range(len(self._orders))]
        pieces[0]["pasta"] = self._limits()
        return b"".join(map(sse, pieces))

    def _pieces(self, events: Sequence[StreamEvent]) -> bytes:
        self._take(events)
        pieces: list[Json] = []
        for sample, order in enumerate(self._orders):
            batch = [event for event in events if event.sample == sample]
            if not batch:
                continue
            is_end = any(isinstance(event, Finished) for event in batch)
            delta = self._delta(sample, order.feed(batch), is_end=is_end)
            if self.body.options.stream == "events":
                pieces += self._events(batch, delta)
                delta = {}
            elif thought := "".join(e.text for e in batch if isinstance(e, ThoughtDelta)):
                delta = {"reasoning_content": thought, **delta}
            if delta:
                pieces.append(self._piece(sample, delta))
            if is_end:
                end = self._piece(sample, {}, self._finish_reason(sample))
                end |= {"pasta": facts} if (facts := self._of_parts(sample)) else {}
                end["choices"][0]["logprobs"] = self._logprobs(self.answers[sample])
                pieces.append(end)
        return b"".join(map(sse, pieces))

    def _delta(self, sample: int, text: str, *, is_end: bool) -> Json:
        if (reader := self._readers[sample]) is None:
            return {"content": text} if text else {}
        first = reader.num_calls
        content, calls = reader.feed(text, is_end=is_end)
        shown = [{"index": index, **call.shown()} for index, call in enumerate(calls, first)]
        return ({"content": content} if content else {}) | ({"tool_calls": shown} if shown else {})

    def _last(self) -> Json:
        """Return the end of a stream: its usage and the figures."""
        end = {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()}
        if self.body.options.stream == "text":  # the events ``finished`` had them
            end["pasta"] = self._figures()
        return end

    def _figures(self) -> Json:
        """Return the figures of all samples, and what the first one says of its parts."""
        samples = sorted(self.answers)
        return {**self._of_parts(samples[0]), "choices": [*map(self.figures, samples)]}

    def _events(self, events: Sequence[StreamEvent], delta: Json) -> Iterator[Json]:
        """Yield one piece an event; the last carries what reading order releases."""
        for event in events:
            added = {"content": "", **(delta if event is events[-1] else {})}
            if isinstance(event, ThoughtDelta):
                added["reasoning_content"] = event.text
            self._num_events += 1
            t_ms = round(1000 * (time.monotonic() - self._began_s), 3)
            facts = {**_event_facts(event), "seq": self._num_events, "t_ms": t_ms}
            if isinstance(event, Finished):
                facts |= self.figures(event.sample)
            elif isinstance(event, Traced):
                facts["news"] = self._live_runs[event.sample].take(event.news)
            yield {**self._piece(event.sample, added), "pasta": facts}

    def _piece(self, sample: int, delta: Json, reason: str | None = None) -> Json:
        choice: Json = {"index": sample, "logprobs": None, "finish_reason": reason}
        choice |= {"delta": delta} if self.is_chat else {"text": delta.get("content", "")}
        piece = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return piece | {"usage": None} if self._sends_usage else piece

    def _head(self, chat_kind: str) -> Json:
        return {
            "id": self.id, "object": chat_kind if self.is_chat else "text_completion",
            "created": self.created, "model": self.backend.name, "system_fingerprint": None,
        }  # fmt: skip


EVENT_KINDS = {
    Traced: "traced", Finished: "finished", ThoughtDelta: "thought", TextDelta: "text",
    ThreadEnded: "ended", Synced: "synced", Deferred: "deferred", ThreadStarted: "started",
}  # fmt: skip
EVENT_KEYS = {
    **{key: key for key in ("thread", "parent", "topic", "promised_tokens", "joined")},
    "text": "delta", "reason": "finish_reason",
}  # fmt: skip
"""Fields of events, with their keys in a stream."""


def _event_facts(event: StreamEvent) -> Json:
    facts = {"kind": EVENT_KINDS[type(event)], "thread": 0, "parent": None, "delta": ""}
    shown = {key: getattr(event, name) for name, key in EVENT_KEYS.items() if hasattr(event, name)}
    return {**facts, **shown}


def _tokens(answer: Answer) -> Iterator[tuple[int, TokenLogprobs]]:
    """Yield the tokens of the plain text, those behind a stop string left out."""
    left = len(answer.text)
    # Without points a skeleton is the answer itself, of tokens that were no content before.
    role = Role.CONTENT if answer.trace.num_content_tokens else Role.TOPIC
    indices: dict[int, count[int]] = defaultdict(count)  # a thread's tokens are in order
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
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    content = [
        {**shown(token, scores.logprob), "top_logprobs": [shown(*pair) for pair in scores.top]}
        for token, scores in _tokens(answer)
    ]
    return {"content": content, "refusal": None}


def _text_logprobs(answer: Answer, spell: Callable[[int], bytes]) -> Json:
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
