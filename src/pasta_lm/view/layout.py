"""The places of a run, whole or as it grows: every drawing of a trace is made from them.

A place is a thread and a pass. Drawings scale passes to pixels, columns or microseconds: as do the
animated SVG, and the JSON for ui.perfetto.dev (the "Trace Event Format" of chrome://tracing).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from pasta_lm.interpreter.trace import SyncRecord, ThreadRecord, TokenRecord, Trace
from pasta_lm.language.tags import SYNC

Threads = Iterable[ThreadRecord]
Tokens = Iterable[TokenRecord]
Syncs = Iterable[SyncRecord]


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


@dataclass(slots=True)
class RunLayout:
    """The rows of all threads, and the lines between them."""

    lanes: list[Lane] = field(default_factory=list)
    forks: list[Edge] = field(default_factory=list)
    joins: list[Edge] = field(default_factory=list)
    critical: list[Span] = field(default_factory=list)  # in order; of a whole trace only
    num_passes: int = 1
    promise_ends: dict[int, TokenRecord] = field(default_factory=dict)  # by the forked thread

    def grow(self, threads: Threads, tokens: Tokens, fed: Tokens, syncs: Syncs) -> None:
        """Add new threads, tokens as they were decoded and as they were fed, and syncs."""
        self.lanes += map(Lane, threads)
        self.promise_ends |= {token.forks: token for token in tokens if token.forks is not None}
        for token in fed:
            number, step = token.thread, _fed_step(token)
            lane, end = self.lanes[number], self.promise_ends.get(number)
            if not lane.spans and lane.thread.parent is not None:
                start = step if end is None or end.fed_step is None else end.fed_step
                self.forks.append(Edge(lane.thread.parent, start, number, step))
            _add_pass(lane.spans, number, step)
            self.num_passes = max(self.num_passes, step + 1)
        for sync in syncs:
            if sync.step is not None:
                self.joins += [
                    Edge(child, self.lanes[child].spans[-1].stop, sync.thread, sync.step)
                    for child in sync.joined
                    if self.lanes[child].spans
                ]

    def add(self, trace: Trace) -> None:
        fed = [token for token in trace.tokens if token.fed_step is not None]
        fed.sort(key=lambda token: (_fed_step(token), token.slot or 0))
        self.grow(trace.threads, trace.tokens, fed, trace.syncs)
        self.num_passes = max(self.num_passes, trace.forward_passes)
        for token in reversed(critical_tokens(trace)):
            _add_pass(self.critical, token.thread, _fed_step(token))


def layout(trace: Trace) -> RunLayout:
    places = RunLayout()
    places.add(trace)
    return places


def _add_pass(spans: list[Span], thread: int, step: int) -> None:
    last = spans[-1] if spans else None
    if last is not None and last.thread == thread and step <= last.stop:
        spans[-1] = last._replace(stop=max(last.stop, step + 1))
    elif last is None or step >= last.stop:  # an ``<async>`` is fed with its promise's end
        spans.append(Span(thread, step, step + 1))


def _fed_step(token: TokenRecord) -> int:
    assert token.fed_step is not None
    return token.fed_step


def to_perfetto(trace: Trace) -> str:
    """Return the trace as JSON for Perfetto: one track a thread, arrows for forks and syncs."""
    ends_us = [1e6 * end_s for end_s in (trace.prefill_s, *trace.step_s)]

    def start_us(step: int) -> float:
        return ends_us[min(max(0, step), len(ends_us) - 1)]  # the end of the step before it

    def arrow(kind: str, number: int | str, edge: Edge) -> list[dict[str, Any]]:
        flow = {"name": kind, "cat": kind, "id": number, "pid": 1}
        return [
            {**flow, "ph": "s", "tid": edge.source, "ts": start_us(edge.start)},
            {**flow, "ph": "f", "bp": "e", "tid": edge.target, "ts": start_us(edge.end)},
        ]

    events = [_name("process_name", 0, trace.model or "pasta-lm")]
    for thread in trace.threads:
        title = "main" if thread.parent is None else f"{thread.id} {thread.topic}"
        events.append(_name("thread_name", thread.id, title))
        for token in trace.tokens_of(thread.id):
            if (step := token.fed_step) is not None:
                facts = {"depth": token.depth, "position": token.position, "slot": token.slot}
                piece = {"name": token.text or token.role.value, "cat": token.role.value}
                duration_us = max(0.0, start_us(step + 1) - start_us(step))
                place = {"pid": 1, "tid": thread.id, "ts": start_us(step), "dur": duration_us}
                events.append({"ph": "X", **piece, **place, "args": facts})
    places = layout(trace)
    for edge in places.forks:
        events += arrow("fork", edge.target, edge)
    for number, edge in enumerate(places.joins):
        inside = edge._replace(start=edge.start - 1)  # an arrow starts inside a slice
        events += arrow("sync", f"sync{number}-{edge.source}", inside)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)


def _name(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": track, "args": {"name": name}}


def to_svg(trace: Trace) -> str:
    """Return a picture of the bars that plays the passes; without motion it shows all of them."""
    places = layout(trace)
    lanes, passes = [lane for lane in places.lanes if lane.spans], places.num_passes
    left, scale, covered = 130, 758 / passes, 10 + 26 * len(lanes)
    rows = []
    for lane, top in zip(lanes, range(10, covered, 26), strict=True):
        name = lane.thread.topic or "main"
        name = escape(name if len(name) < 17 else f"{name[:15]}\u2026")
        rows.append(f'<text x="12" y="{top}" dy="16">{name}</text>')
        for number, first, stop in lane.spans:
            place = f'x="{left + first * scale:.1f}" y="{top}" rx="3" height="22"'
            style = f'width="{(stop - first) * scale - 1:.1f}" style="--hue: {number * 137 + 73}"'
            rows.append(f'<rect class="bar" {place} {style}/>')
        for token in trace.tokens_of(lane.thread.id):
            text, step = token.text.strip(), token.fed_step
            if step is not None and text and len(text) * 7.5 < scale:
                place = f'x="{left + (step + 0.5) * scale:.1f}" y="{top}" dy="16"'
                rows.append(f'<text class="paper token" {place}>{escape(text)}</text>')
    tokens = f"{round(trace.parallelism * trace.critical_path)} tokens of text"
    title = f"{tokens} in {trace.critical_path} steps, {trace.parallelism:.1f} a step"
    shape = {"covered": covered, "height": covered + 30, "shift": 900 - left, "passes": passes}
    shape["seconds"] = min(9, 2 + passes // 2)
    title, drawn = escape(f"{trace.model}: {title}"), "\n".join(rows)
    template = Path(__file__).with_name("static").joinpath("bars.svg").read_text("utf-8")
    return Template(template).substitute(shape, title=title, rows=drawn)


def critical_tokens(trace: Trace) -> list[TokenRecord]:
    """Return a longest chain of tokens that were decoded one after another, the last first."""
    by_thread = trace.by_thread()
    before = {id(b): a for tokens in by_thread.values() for a, b in pairwise(tokens)}
    promise_ends = {token.forks: token for token in trace.tokens if token.forks is not None}
    joins = {(sync.thread, sync.step): sync.joined for sync in trace.syncs}

    def needed(token: TokenRecord) -> list[TokenRecord]:
        last = [before[id(token)]] if id(token) in before else []
        is_sync = token.tag == SYNC or not last  # a part begins when others have ended
        if not last:  # the first of its thread
            parent = trace.threads[token.thread].parent
            last = [] if parent is None else by_thread[parent][-1:]
            last = [promise_ends[token.thread]] if token.thread in promise_ends else last
        joined = joins.get((token.thread, token.fed_step), []) if is_sync else []
        ends = (end for number in joined for end in by_thread[number])
        return [*last, *(end for end in ends if depth(end) < depth(token))]

    def depth(token: TokenRecord) -> int:
        return token.depth or 0

    chain: list[TokenRecord] = []
    tokens = trace.tokens
    while fed := [token for token in tokens if token.depth is not None]:
        chain.append(max(fed, key=depth))
        tokens = needed(chain[-1])
    return chain
