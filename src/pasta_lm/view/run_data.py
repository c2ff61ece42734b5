"""A trace as the data of the page: whole, or pass by pass while it is decoded.

The page computes no visibility, no critical path and no comparison. The one rule of comparisons:
the clocks of two runs are divided only if both decoded the same text to its end with the same
model. Otherwise each has its own tokens a second, and a run that a limit cut says where.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
from pasta_lm.interpreter.visibility import PROMPT_OWNER, Row
from pasta_lm.language.tags import SYNC
from pasta_lm.view.layout import Edge, RunLayout, Span, layout


class TokenData(TypedDict):
    """One token of the page."""

    thread: int
    text: str
    role: str  # content, topic or tag; "given": a prefix's part of the answer, fed at once
    decoded: int  # the pass that wrote it; -1 is the prefill
    fed: int | None  # the pass that fed it
    critical: bool  # whether it is on the critical path
    forks: int | None  # the thread that this token, the end of a promise, forks


class Seen(TypedDict):
    """The tokens that a thread could see from its token ``index`` on, its own ones apart."""

    index: int
    prompt: int  # tokens of the prompt
    threads: dict[int, int]  # by thread: its number of tokens, counted from its first


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
    """Return the data of a whole trace; with an answer in annotator form, the page can edit it."""
    places, sight = layout(trace), _Sight(trace.num_prompt_tokens)
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
        self._places, self._sight = RunLayout(), _Sight(num_prompt)
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


@dataclass(slots=True)
class _ThreadSight:
    """The tokens of a thread, and its rows so far."""

    record: ThreadRecord
    tokens: list[TokenRecord] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # of its fed tokens
    rows: list[tuple[int, Row]] = field(default_factory=list)  # each with the slot it holds from
    seen: list[Seen] = field(default_factory=list)  # equal neighbours as one
    num_done: int = 0  # tokens that ``seen`` covers

    @property
    def owner(self) -> int:
        return PROMPT_OWNER + 1 + self.record.id


class _Sight:
    """The tokens that each thread could see when it wrote its own, by the interpreter's rows."""

    def __init__(self, num_prompt: int) -> None:
        self.threads: list[_ThreadSight] = []
        self._num_prompt = num_prompt
        self._promise_ends: dict[int, TokenRecord] = {}  # by the forked thread

    def grow(
        self,
        threads: Iterable[ThreadRecord],
        tokens: Iterable[TokenRecord],
        fed: Iterable[TokenRecord],
        syncs: Iterable[SyncRecord],
    ) -> None:
        self.threads += map(_ThreadSight, threads)
        for token in tokens:
            self.threads[token.thread].tokens.append(token)
            if token.forks is not None:
                self._promise_ends[token.forks] = token
        joins = {(sync.thread, sync.step): sync for sync in syncs}
        for token in fed:
            if token.slot is None:
                continue
            thread = self.threads[token.thread]
            thread.slots.append(token.slot)
            sync = joins.get((token.thread, token.fed_step))
            if sync is not None and token.tag == SYNC and (rows := self._rows(thread)):
                joined = [self.threads[child].owner for child in sync.joined]
                rows.append((token.slot, rows[-1][1].sync(joined)))
        for thread in self.threads:
            self._look(thread)

    def _look(self, thread: _ThreadSight) -> None:
        """Find the view of each new token.

        A token is written by the query of the token before it: it sees what that one sees. The
        first tokens of main come from the prefill, and ``<async>`` from the promise's end.
        """
        if not self._rows(thread):
            return
        first = self._promise_ends.get(thread.record.id)
        for index in range(thread.num_done, len(thread.tokens)):
            query = thread.tokens[index - 1] if index else first
            slot = self._num_prompt - 1 if query is None else query.slot
            if slot is None:
                return  # it is not fed, so nothing is known of the token behind it
            seen = self._seen(thread, index, slot)
            if not thread.seen or {**thread.seen[-1], "index": index} != seen:
                thread.seen.append(seen)
            thread.num_done += 1

    def _rows(self, thread: _ThreadSight) -> list[tuple[int, Row]]:
        """Return a thread's rows; empty if the trace does not name its promise's end."""
        record = thread.record
        if record.parent is None and not thread.rows:
            thread.rows.append((0, Row.of_main(thread.owner)))
        elif record.parent is not None and not thread.rows:
            end, parent = self._promise_ends.get(record.id), self.threads[record.parent]
            above = self._rows(parent)
            if above and end is not None and end.slot is not None:
                row = [row for slot, row in above if slot <= end.slot][-1]
                child = row.fork(parent=parent.owner, child=thread.owner, promise_end_slot=end.slot)
                thread.rows.append((0, child))
        return thread.rows

    def _seen(self, thread: _ThreadSight, index: int, query: int) -> Seen:
        place = bisect_right(thread.rows, query, key=lambda held: held[0]) - 1
        row = thread.rows[max(place, 0)][1]
        owners = row.cutoffs.keys() - {PROMPT_OWNER, thread.owner}  # of others nothing is seen
        others = [self.threads[owner - PROMPT_OWNER - 1] for owner in sorted(owners)]
        counts = {
            other.record.id: count
            for other in others
            if (count := bisect_left(other.slots, row.end(query_slot=query, owner=other.owner)))
        }
        prompt = min(row.end(query_slot=query, owner=PROMPT_OWNER), self._num_prompt)
        return {"index": index, "prompt": prompt, "threads": counts}
