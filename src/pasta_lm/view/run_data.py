"""A trace as the data of the page, whole or pass by pass, and the layout of every drawing of it.

The layout has a row for each thread and a column for each pass. The page computes no visibility and
no critical path. The rule of comparisons: the clocks of two runs are divided only if both decoded
the same text to its end with the same model, or its fields, in JSON mode too. Otherwise a run has
its tokens a second alone, and a run that a limit cut says where.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from pasta_lm.interpreter.trace import (
    Kind,
    Role,
    SyncRecord,
    ThreadRecord,
    TokenRecord,
    Trace,
    TraceNews,
)
from pasta_lm.interpreter.visibility import PROMPT_OWNER, Row
from pasta_lm.language.tags import SYNC

Seen = dict[str, object]
"""Numbers of tokens that a thread could see from its token ``index`` on: prompt, other threads."""


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
    """The row of one thread, its tokens, and those of others that it saw when it wrote them."""

    thread: ThreadRecord
    spans: list[Span] = field(default_factory=list)
    tokens: list[TokenRecord] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # the cache slots of the fed tokens
    rows: list[tuple[int, Row]] = field(default_factory=list)  # with the first slot of a query
    seen: list[Seen] = field(default_factory=list)  # equal neighbours as one
    num_done: int = 0  # tokens that ``seen`` covers
    num_told: int = 0  # rows of ``seen`` that the page has

    @property
    def owner(self) -> int:
        return PROMPT_OWNER + 1 + self.thread.id


class LiveRun:
    """A run, as it is decoded: the rows of all threads, and the lines between them."""

    def __init__(self, num_prompt: int) -> None:
        self.lanes: list[Lane] = []
        self.forks: list[Edge] = []
        self.joins: list[Edge] = []
        self.critical: list[Span] = []  # in order; of a whole trace only
        self.num_passes = 1
        self._promise_ends: dict[int, TokenRecord] = {}  # by the forked thread
        self._num_prompt = num_prompt
        self._tokens: list[TokenRecord] = []

    @classmethod
    def of(cls, trace: Trace) -> LiveRun:
        run = cls(trace.num_prompt_tokens)
        fed = [token for token in trace.tokens if token.fed_step is not None]
        fed.sort(key=lambda token: (_fed_step(token), token.slot or 0))
        run._grow(trace, fed)
        run.num_passes = max(run.num_passes, trace.forward_passes)
        for token in reversed(critical_tokens(trace)):
            _add_pass(run.critical, token.thread, _fed_step(token))
        return run

    def take(self, news: TraceNews) -> dict[str, object]:
        """Return the new items of a ``RunData``, and what changes earlier ones.

        ``fed`` has pairs of an earlier token and the pass that fed it, ``lanes`` pairs of a thread
        and a pass that fed it, ``seen`` rows for a thread's list of the same name.
        """
        fed = [token for token in news.tokens if token.slot is not None]
        for index, record in news.fed:
            token = self._tokens[index]
            token.fed_step, token.slot = record.fed_step, record.slot
            fed.append(token)
        fed.sort(key=lambda token: token.slot or 0)
        self._tokens += news.tokens
        num_forks, num_joins = len(self.forks), len(self.joins)
        self._grow(news, fed)
        seen: list[dict[str, object]] = []
        for lane in self.lanes:
            seen += [{"thread": lane.thread.id, **row} for row in lane.seen[lane.num_told :]]
            lane.num_told = len(lane.seen)
        return {
            "kind": news.kind.value, "prefill_s": news.prefill_s, "step_s": news.step_s,
            "threads": [_thread(Lane(thread)) for thread in news.threads],
            "tokens": [_token(token, is_critical=False) for token in news.tokens],
            "fed": [[index, record.fed_step] for index, record in news.fed],
            "lanes": [[token.thread, token.fed_step] for token in fed], "syncs": _syncs(news.syncs),
            "forks": self.forks[num_forks:], "joins": self.joins[num_joins:], "seen": seen,
        }  # fmt: skip

    def _grow(self, news: Trace | TraceNews, fed: Iterable[TokenRecord]) -> None:
        self.lanes += map(Lane, news.threads)
        for token in news.tokens:
            self.lanes[token.thread].tokens.append(token)
            if token.forks is not None:
                self._promise_ends[token.forks] = token
        joined = {(sync.thread, sync.step): sync.joined for sync in news.syncs}
        for token in fed:
            self._feed(token, joined.get((token.thread, token.fed_step), ()))
        for sync in news.syncs:
            if sync.step is not None:
                self.joins += [
                    Edge(child, self.lanes[child].spans[-1].stop, sync.thread, sync.step)
                    for child in sync.joined
                    if self.lanes[child].spans
                ]
        for lane in self.lanes:
            self._look(lane)

    def _feed(self, token: TokenRecord, joined: Sequence[int]) -> None:
        number, step = token.thread, _fed_step(token)
        lane, end = self.lanes[number], self._promise_ends.get(number)
        if not lane.spans and lane.thread.parent is not None:
            start = step if end is None or end.fed_step is None else end.fed_step
            self.forks.append(Edge(lane.thread.parent, start, number, step))
        _add_pass(lane.spans, number, step)
        self.num_passes = max(self.num_passes, step + 1)
        if token.slot is not None:
            lane.slots.append(token.slot)
            if joined and token.tag == SYNC and (rows := self._rows(lane)):
                owners = [self.lanes[child].owner for child in joined]
                rows.append((token.slot, rows[-1][1].sync(owners)))

    def _look(self, lane: Lane) -> None:
        """Record the view of the new tokens.

        A token is written by the query of the token before it: it sees what that one sees. The
        first tokens of main come from the prefill, and ``<async>`` from the promise's end.
        """
        if not self._rows(lane):
            return
        first = self._promise_ends.get(lane.thread.id)
        for index in range(lane.num_done, len(lane.tokens)):
            query = lane.tokens[index - 1] if index else first
            slot = self._num_prompt - 1 if query is None else query.slot
            if slot is None:
                return  # it is not fed, so nothing is known of the token behind it
            seen = self._seen(lane, index, slot)
            if not lane.seen or {**lane.seen[-1], "index": index} != seen:
                lane.seen.append(seen)
            lane.num_done += 1

    def _rows(self, lane: Lane) -> list[tuple[int, Row]]:
        end, parent = self._promise_ends.get(lane.thread.id), lane.thread.parent
        if lane.rows:
            return lane.rows
        if parent is None:
            lane.rows.append((0, Row.of_main(lane.owner)))
        elif end is not None and (slot := end.slot) is not None:
            above = self.lanes[parent]
            if rows := [row for first, row in self._rows(above) if first <= slot]:
                child = rows[-1].fork(parent=above.owner, child=lane.owner, promise_end_slot=slot)
                lane.rows.append((0, child))
        return lane.rows

    def _seen(self, lane: Lane, index: int, query: int) -> Seen:
        index_of_row = bisect_right(lane.rows, query, key=lambda held: held[0]) - 1
        row = lane.rows[max(index_of_row, 0)][1]
        owners = row.cutoffs.keys() - {PROMPT_OWNER, lane.owner}  # those that it sees
        others = [self.lanes[owner - PROMPT_OWNER - 1] for owner in sorted(owners)]
        counts = {
            other.thread.id: count
            for other in others
            if (count := bisect_left(other.slots, row.end(query_slot=query, owner=other.owner)))
        }
        prompt = min(row.end(query_slot=query, owner=PROMPT_OWNER), self._num_prompt)
        return {"index": index, "prompt": prompt, "threads": counts}


def _add_pass(spans: list[Span], thread: int, step: int) -> None:
    last = spans[-1] if spans else None
    if last is not None and last.thread == thread and step <= last.stop:
        spans[-1] = last._replace(stop=max(last.stop, step + 1))
    elif last is None or step >= last.stop:  # an ``<async>`` is fed with its promise's end
        spans.append(Span(thread, step, step + 1))


def _fed_step(token: TokenRecord) -> int:
    assert token.fed_step is not None
    return token.fed_step


def critical_tokens(trace: Trace) -> list[TokenRecord]:
    """Return a longest chain of tokens that were decoded one after another, the last first."""
    by_thread = trace.by_thread()
    before = {id(b): a for tokens in by_thread.values() for a, b in pairwise(tokens)}
    promise_ends = {token.forks: token for token in trace.tokens if token.forks is not None}
    joins = {(sync.thread, sync.step): sync.joined for sync in trace.syncs}

    def needed(token: TokenRecord) -> list[TokenRecord]:
        last = [before[id(token)]] if id(token) in before else []
        is_sync = token.tag == SYNC or not last  # it begins when others have ended
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


RunData = dict[str, object]
"""A run as JSON: what ``run_data`` returns, and the page draws."""

FACTS = (
    *("model", "engine", "strategy", "positions", "finish_reason", "num_prompt_tokens"),
    *("num_content_tokens", "num_tokens", "forward_passes", "critical_path", "parallelism"),
    *("num_illegal", "wall_s", "tokens_per_s"),
)


def run_data(trace: Trace, name: str = "", text: str | None = None) -> RunData:
    """Return the data of a run; ``text`` is its answer, if threads wrote only some of it."""
    run = LiveRun.of(trace)
    critical = {id(token) for token in critical_tokens(trace)}
    facts = {fact: getattr(trace, fact) for fact in FACTS}
    facts |= {"kind": trace.kind.value, "cut_at": cut_at(trace)}
    facts |= {"compares": comparison_key(trace, text)}
    return {
        "name": name or trace.strategy or "run", "facts": facts,
        "prefill_s": trace.prefill_s, "step_s": trace.step_s,
        "threads": [*map(_thread, run.lanes)],
        "tokens": [_token(token, id(token) in critical) for token in trace.tokens],
        "syncs": _syncs(sync for sync in trace.syncs if sync.step is not None),
        "forks": run.forks, "joins": run.joins, "critical": run.critical,
    }  # fmt: skip


def cut_at(trace: Trace) -> int | None:
    """Return the number of content tokens at which a limit cut the answer; None: it is whole."""
    return None if trace.finish_reason == "stop" else trace.num_content_tokens


def comparison_key(trace: Trace, text: str | None = None) -> str | None:
    """Return a key that is equal for runs whose clocks may be divided; None: no other's may."""
    if cut_at(trace) is not None:
        return None
    tokens = (token for token in trace.in_reading_order() if token.role is not Role.TOPIC)
    text = "".join(token.text for token in tokens) if text is None else text
    clock = "simulated" if trace.kind is Kind.SIMULATED else "wall"
    facts = "\0".join([trace.model or "", trace.engine or "", clock, text])
    return sha256(facts.encode("utf-8", "replace")).hexdigest()[:16]


def speed_figures(trace: Trace, num_text_tokens: int) -> dict[str, str | int | float | None]:
    """Return the figures of one run, whose text has a number of tokens without tags."""
    rate = trace.tokens_per_s
    return {
        "critical_path_tokens": trace.critical_path, "parallelism": round(trace.parallelism, 4),
        "theoretical_speedup": round(trace.speedup_over_text(num_text_tokens), 4),
        "tokens_per_s": None if rate is None else round(rate, 2), "wall_s": round(trace.wall_s, 6),
        "cut_at": cut_at(trace),
    }  # fmt: skip


def _thread(lane: Lane) -> dict[str, object]:
    record = lane.thread
    return {
        "id": record.id, "parent": record.parent, "topic": record.topic,
        "promised": record.promised_tokens, "finish_reason": record.finish_reason,
        "spans": lane.spans,
        "seen": lane.seen if lane.rows else None,  # None: the trace does not say where the fork was
    }  # fmt: skip


def _token(token: TokenRecord, is_critical: bool) -> dict[str, object]:
    is_given = token.role is Role.TAG and token.text  # the answer's share of a prefix, fed at once
    return {
        "thread": token.thread, "text": token.tag or token.text,
        "role": "given" if is_given else token.role.value,
        "decoded": token.decoded_step,  # the pass that wrote it; -1 is the prefill
        "fed": token.fed_step,
        "critical": is_critical,
        "forks": token.forks,  # the thread that this token, the end of a promise, forks
    }  # fmt: skip


def _syncs(syncs: Iterable[SyncRecord]) -> list[dict[str, object]]:
    return [
        {"thread": sync.thread, "joined": sync.joined, "step": sync.step or 0} for sync in syncs
    ]
