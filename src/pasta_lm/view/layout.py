"""The places of a run, whole or as it grows: every drawing of a trace is made from them.

A place is a thread and a pass. Drawings scale passes to pixels, columns or microseconds: as does
the JSON for ui.perfetto.dev (the "Trace Event Format" of chrome://tracing).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pasta_lm.interpreter.trace import SyncRecord, ThreadRecord, TokenRecord, Trace


class Span(NamedTuple):
    """Consecutive passes that fed a thread."""

    thread: int
    first: int
    stop: int  # the pass after the last


class Edge(NamedTuple):
    """A line between two threads: a fork, or a thread that a sync joins."""

    source: int
    start: int
    target: int
    end: int


@dataclass(slots=True)
class Lane:
    """The row of one thread."""

    thread: ThreadRecord
    spans: list[Span] = field(default_factory=list)

    def extend(self, step: int) -> None:
        """Add a pass that fed the thread."""
        if not self.spans or step > self.spans[-1].stop:
            self.spans.append(Span(self.thread.id, step, step + 1))
        else:
            last = self.spans[-1]
            self.spans[-1] = last._replace(stop=max(last.stop, step + 1))


@dataclass(slots=True)
class RunLayout:
    """The rows of all threads, and the lines between them."""

    lanes: list[Lane] = field(default_factory=list)
    forks: list[Edge] = field(default_factory=list)
    joins: list[Edge] = field(default_factory=list)
    critical: list[Span] = field(default_factory=list)  # in order; of a whole trace only
    num_passes: int = 1
    _promise_ends: dict[int, TokenRecord] = field(default_factory=dict)  # by the forked thread

    def grow(
        self,
        threads: Iterable[ThreadRecord],
        tokens: Iterable[TokenRecord],
        fed: Iterable[TokenRecord],
        syncs: Iterable[SyncRecord],
    ) -> None:
        """Add new threads, tokens as they were decoded and as they were fed, and syncs."""
        self.lanes += map(Lane, threads)
        self._promise_ends |= {token.forks: token for token in tokens if token.forks is not None}
        for token in fed:
            if token.fed_step is not None:
                self._feed(token.thread, token.fed_step)
        for sync in syncs:
            if sync.step is not None:
                self.joins += [
                    Edge(child, self.lanes[child].spans[-1].stop, sync.thread, sync.step)
                    for child in sync.joined
                    if self.lanes[child].spans
                ]

    def _feed(self, number: int, step: int) -> None:
        lane = self.lanes[number]
        parent = lane.thread.parent
        if not lane.spans and parent is not None:
            promise_end = self._promise_ends.get(number)
            start = None if promise_end is None else promise_end.fed_step
            self.forks.append(Edge(parent, step if start is None else start, number, step))
        lane.extend(step)
        self.num_passes = max(self.num_passes, step + 1)


def layout(trace: Trace) -> RunLayout:
    places = RunLayout(num_passes=max(1, trace.forward_passes))
    fed = sorted((token for token in trace.tokens if token.fed_step is not None), key=_fed_step)
    places.grow(trace.threads, trace.tokens, fed, trace.syncs)
    places.critical = _critical_spans(trace.critical_tokens())
    return places


def _critical_spans(chain: Sequence[TokenRecord]) -> list[Span]:
    """Return the critical path as spans from its first token to its last, each pass once."""
    spans: list[Span] = []
    for token in reversed(chain):
        step = _fed_step(token)
        last = spans[-1] if spans else None
        if last is not None and step < last.stop:
            continue  # an ``<async>``, which its promise's end is fed with
        if last is not None and last.thread == token.thread and last.stop == step:
            spans[-1] = last._replace(stop=step + 1)
        else:
            spans.append(Span(token.thread, step, step + 1))
    return spans


def _fed_step(token: TokenRecord) -> int:
    assert token.fed_step is not None
    return token.fed_step


def to_perfetto(trace: Trace) -> str:
    """Return the trace as JSON for Perfetto: one track a thread, arrows for forks and syncs."""
    places = layout(trace)
    events = [_name("process_name", 0, trace.model or "pasta-lm")]
    for thread in trace.threads:
        title = "main" if thread.parent is None else f"{thread.id} {thread.topic}"
        tokens = [token for token in trace.tokens_of(thread.id) if token.fed_step is not None]
        events += [
            _name("thread_name", thread.id, title),
            *(_slice(trace, token) for token in tokens),
        ]
    for edge in places.forks:
        events += _arrow(trace, "fork", edge.target, edge)
    for number, edge in enumerate(places.joins):
        inside = edge._replace(start=edge.start - 1)  # an arrow starts inside a slice
        events += _arrow(trace, "sync", f"sync{number}-{edge.source}", inside)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)


def _name(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": track, "args": {"name": name}}


def _arrow(trace: Trace, kind: str, number: int | str, edge: Edge) -> list[dict[str, Any]]:
    flow = {"name": kind, "cat": kind, "id": number, "pid": 1}
    start, end = _step_start_us(trace, edge.start), _step_start_us(trace, edge.end)
    return [
        {**flow, "ph": "s", "tid": edge.source, "ts": start},
        {**flow, "ph": "f", "bp": "e", "tid": edge.target, "ts": end},
    ]


def _slice(trace: Trace, token: TokenRecord) -> dict[str, Any]:
    start = _step_start_us(trace, _fed_step(token))
    return {
        "ph": "X",
        "name": token.text or token.role.value,
        "cat": token.role.value,
        "pid": 1,
        "tid": token.thread,
        "ts": start,
        "dur": max(0.0, _step_start_us(trace, _fed_step(token) + 1) - start),
        "args": {"depth": token.depth, "position": token.position, "slot": token.slot},
    }


def _step_start_us(trace: Trace, step: int) -> float:
    """Return the time at which a step began: the end of the one before it, or of the prefill."""
    if step <= 0 or not trace.step_s:
        return trace.prefill_s * 1e6
    return trace.step_s[min(step, len(trace.step_s)) - 1] * 1e6
