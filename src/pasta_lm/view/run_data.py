"""A trace as the data of the page: whole, or pass by pass while it is decoded.

The page computes no visibility, no critical path and no comparison. The one rule of comparisons:
the clocks of two runs are divided only if both decoded the same text to its end with the same
model. Otherwise each has its own tokens a second, and a run that a limit cut says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any, TypedDict

from pasta_lm.interpreter.trace import (
    Kind,
    Role,
    SyncRecord,
    ThreadRecord,
    TokenRecord,
    Trace,
    TraceNews,
)
from pasta_lm.view.layout import Edge, RunLayout, Span, layout
from pasta_lm.view.sight import Seen, Sight


class TokenData(TypedDict):
    """One token of the page."""

    thread: int
    text: str
    role: str  # content, topic or tag; "given": a prefix's part of the answer, fed at once
    decoded: int  # the pass that wrote it; -1 is the prefill
    fed: int | None  # the pass that fed it
    critical: bool  # whether it is on the critical path
    forks: int | None  # the thread that this token, the end of a promise, forks


class ThreadData(TypedDict):
    """One thread of the page."""

    id: int
    parent: int | None
    topic: str | None
    promised: int | None
    finish_reason: str | None
    spans: list[Span]
    seen: list[Seen] | None  # None: the trace does not name the place of the fork


class RunData(TypedDict):
    """One run of the page."""

    name: str
    facts: dict[str, str | int | float | None]
    prefill_s: float
    step_s: list[float]
    threads: list[ThreadData]
    tokens: list[TokenData]  # in the order in which they were decoded
    syncs: list[dict[str, int | list[int]]]
    forks: list[Edge]
    joins: list[Edge]
    critical: list[Span]
    annotated: str | None  # the answer in the annotator form, for its tags to be edited


FACTS = (
    "model",
    "engine",
    "strategy",
    "positions",
    "finish_reason",
    "num_prompt_tokens",
    "num_content_tokens",
    "num_tokens",
    "forward_passes",
    "critical_path",
    "parallelism",
    "num_illegal",
    "wall_s",
    "tokens_per_s",
)


def run_data(trace: Trace, name: str = "", annotated: str | None = None) -> RunData:
    """Return the data of a whole trace.

    Args:
        trace: The run.
        name: Its name beside other runs.
        annotated: The answer in the annotator form, if the page is to edit it.
    """
    places, sight = layout(trace), Sight(trace.num_prompt_tokens)
    fed = sorted((token for token in trace.tokens if token.slot is not None), key=_slot)
    sight.grow(trace.threads, trace.tokens, fed, trace.syncs)
    critical = {id(token) for token in trace.critical_tokens()}
    facts = {fact: getattr(trace, fact) for fact in FACTS}
    facts |= {"kind": trace.kind.value, "cut_at": cut_at(trace), "compares": comparison_key(trace)}
    return {
        "name": name or trace.strategy or "run",
        "facts": facts,
        "prefill_s": trace.prefill_s,
        "step_s": trace.step_s,
        "threads": [
            _thread(lane.thread, lane.spans, thread.seen if thread.rows else None)
            for lane, thread in zip(places.lanes, sight.threads, strict=True)
        ],
        "tokens": [_token(token, id(token) in critical) for token in trace.tokens],
        "syncs": [_sync(sync) for sync in trace.syncs if sync.step is not None],
        "forks": places.forks,
        "joins": places.joins,
        "critical": places.critical,
        "annotated": annotated,
    }


class LiveRun:
    """A run that is still decoded, for the page."""

    def __init__(self, num_prompt: int) -> None:
        self._places, self._sight = RunLayout(), Sight(num_prompt)
        self._tokens: list[TokenRecord] = []
        self._num_seen: list[int] = []  # by thread: rows of ``seen`` that the page has

    def take(self, news: TraceNews) -> dict[str, Any]:
        """Return the parts of a ``RunData`` that are new, and three of their own.

        ``fed`` has pairs of a token's number and the pass that fed it, for tokens that came
        before; ``lanes`` has pairs of a thread and a pass that fed it; ``seen`` has rows for a
        thread's list of the same name.
        """
        for index, record in news.fed:
            token = self._tokens[index]
            token.fed_step, token.slot = record.fed_step, record.slot
        fed = [self._tokens[index] for index, _ in news.fed]
        fed += [token for token in news.tokens if token.slot is not None]
        fed.sort(key=_slot)
        self._tokens += news.tokens
        self._num_seen += [0] * len(news.threads)
        places = self._places
        num_forks, num_joins = len(places.forks), len(places.joins)
        places.grow(news.threads, news.tokens, fed, news.syncs)
        self._sight.grow(news.threads, news.tokens, fed, news.syncs)
        return {
            "kind": news.kind.value,
            "prefill_s": news.prefill_s,
            "step_s": news.step_s,
            "threads": [_thread(thread, [], None) for thread in news.threads],
            "tokens": [_token(token, is_critical=False) for token in news.tokens],
            "fed": [[index, record.fed_step] for index, record in news.fed],
            "lanes": [[token.thread, token.fed_step] for token in fed],
            "syncs": [_sync(sync) for sync in news.syncs],
            "forks": places.forks[num_forks:],
            "joins": places.joins[num_joins:],
            "seen": list(self._new_rows()),
        }

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        for number, thread in enumerate(self._sight.threads):
            for row in thread.seen[self._num_seen[number] :]:
                yield {"thread": number, **row}
            self._num_seen[number] = len(thread.seen)


def cut_at(trace: Trace) -> int | None:
    """Return the number of content tokens at which a limit cut the answer; None: it is whole."""
    return None if trace.finish_reason == "stop" else trace.num_content_tokens


def comparison_key(trace: Trace) -> str | None:
    """Return a key that is equal for runs whose clocks may be divided; None: no other's may."""
    if cut_at(trace) is not None:
        return None
    text = "".join(token.text for token in trace.in_reading_order() if token.role is not Role.TOPIC)
    clock = "simulated" if trace.kind is Kind.SIMULATED else "wall"
    facts = "\0".join([trace.model or "", trace.engine or "", clock, text])
    return sha256(facts.encode("utf-8", "replace")).hexdigest()[:16]


def speed_figures(trace: Trace, num_text_tokens: int) -> dict[str, str | int | float | None]:
    """Return the figures of one run, whose text has a number of tokens without tags."""
    rate = trace.tokens_per_s
    return {
        "critical_path_tokens": trace.critical_path,
        "parallelism": round(trace.parallelism, 4),
        "theoretical_speedup": round(trace.speedup_over_text(num_text_tokens), 4),
        "tokens_per_s": None if rate is None else round(rate, 2),
        "wall_s": round(trace.wall_s, 6),
        "cut_at": cut_at(trace),
    }


def _slot(token: TokenRecord) -> int:
    assert token.slot is not None
    return token.slot


def _thread(record: ThreadRecord, spans: list[Span], seen: list[Seen] | None) -> ThreadData:
    return {
        "id": record.id,
        "parent": record.parent,
        "topic": record.topic,
        "promised": record.promised_tokens,
        "finish_reason": record.finish_reason,
        "spans": spans,
        "seen": seen,
    }


def _token(token: TokenRecord, is_critical: bool) -> TokenData:
    return {
        "thread": token.thread,
        "text": token.tag or token.text,
        "role": "given" if token.role is Role.TAG and token.text else token.role.value,
        "decoded": token.decoded_step,
        "fed": token.fed_step,
        "critical": is_critical,
        "forks": token.forks,
    }


def _sync(sync: SyncRecord) -> dict[str, int | list[int]]:
    return {"thread": sync.thread, "joined": sync.joined, "step": sync.step or 0}
