"""A trace as the data of the page: whole, or pass by pass while it is decoded.

The page computes no visibility, no critical path and no comparison. The one rule of comparisons:
the clocks of two runs are divided only if both decoded the same text to its end with the same
model. Otherwise each has its own tokens a second, and a run that a limit cut says where.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypedDict

from pasta_lm.interpreter.trace import Kind, Role, ThreadRecord, TokenRecord, Trace, TraceNews
from pasta_lm.interpreter.visibility import PROMPT_OWNER, Row
from pasta_lm.language.tags import SYNC
from pasta_lm.view.layout import Edge, RunLayout, Span, Syncs, Threads, Tokens, critical_tokens


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


FACTS = (
    *("model", "engine", "strategy", "positions", "finish_reason", "num_prompt_tokens"),
    *("num_content_tokens", "num_tokens", "forward_passes", "critical_path", "parallelism"),
    *("num_illegal", "wall_s", "tokens_per_s"),
)


def run_data(trace: Trace, name: str = "", text: str | None = None) -> RunData:
    """Return the data of a run; ``text`` is its answer, where threads wrote only a part of that."""
    run = LiveRun(trace.num_prompt_tokens)
    run.add(trace)
    critical = {id(token) for token in critical_tokens(trace)}
    facts = {fact: getattr(trace, fact) for fact in FACTS}
    facts |= {
        "kind": trace.kind.value,
        "cut_at": cut_at(trace),
        "compares": comparison_key(trace, text),
    }
    return {
        "name": name or trace.strategy or "run",
        "facts": facts,
        "prefill_s": trace.prefill_s,
        "step_s": trace.step_s,
        "threads": [
            _thread(lane.thread, lane.spans, sight.seen if sight.rows else None)
            for lane, sight in zip(run.lanes, run.sights, strict=True)
        ],
        "tokens": [_token(token, id(token) in critical) for token in trace.tokens],
        "syncs": _syncs(sync for sync in trace.syncs if sync.step is not None),
        "forks": run.forks,
        "joins": run.joins,
        "critical": run.critical,
    }


@dataclass(slots=True)
class _Sight:
    """The tokens of a thread, and those of others that it could see when it wrote them."""

    thread: ThreadRecord
    tokens: list[TokenRecord] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # of its fed tokens
    rows: list[tuple[int, Row]] = field(default_factory=list)  # each with the slot it holds from
    seen: list[Seen] = field(default_factory=list)  # equal neighbours as one
    num_done: int = 0  # tokens that ``seen`` covers
    num_told: int = 0  # rows of ``seen`` that the page has

    @property
    def owner(self) -> int:
        return PROMPT_OWNER + 1 + self.thread.id


class LiveRun(RunLayout):
    """A run, as it is decoded, with the tokens that each thread could see."""

    def __init__(self, num_prompt: int) -> None:
        super().__init__()
        self.sights: list[_Sight] = []
        self._num_prompt = num_prompt
        self._tokens: list[TokenRecord] = []

    def take(self, news: TraceNews) -> dict[str, Any]:
        """Return the parts of a ``RunData`` that are new, and three of their own.

        ``fed`` has pairs of a token's number and the pass that fed it, for tokens that came
        before; ``lanes`` has pairs of a thread and a pass that fed it; ``seen`` has rows for a
        thread's list of the same name.
        """
        fed = [token for token in news.tokens if token.slot is not None]
        for index, record in news.fed:
            token = self._tokens[index]
            token.fed_step, token.slot = record.fed_step, record.slot
            fed.append(token)
        fed.sort(key=lambda token: token.slot or 0)
        self._tokens += news.tokens
        num_forks, num_joins = len(self.forks), len(self.joins)
        self.grow(news.threads, news.tokens, fed, news.syncs)
        seen: list[dict[str, Any]] = []
        for sight in self.sights:
            seen += [{"thread": sight.thread.id, **row} for row in sight.seen[sight.num_told :]]
            sight.num_told = len(sight.seen)
        return {
            "kind": news.kind.value,
            "prefill_s": news.prefill_s,
            "step_s": news.step_s,
            "threads": [_thread(thread, [], None) for thread in news.threads],
            "tokens": [_token(token, is_critical=False) for token in news.tokens],
            "fed": [[index, record.fed_step] for index, record in news.fed],
            "lanes": [[token.thread, token.fed_step] for token in fed],
            "syncs": _syncs(news.syncs),
            "forks": self.forks[num_forks:],
            "joins": self.joins[num_joins:],
            "seen": seen,
        }

    def grow(self, threads: Threads, tokens: Tokens, fed: Tokens, syncs: Syncs) -> None:
        super().grow(threads, tokens, fed, syncs)
        self.sights += map(_Sight, threads)
        for token in tokens:
            self.sights[token.thread].tokens.append(token)
        joins = {(sync.thread, sync.step): sync for sync in syncs}
        for token in fed:
            if token.slot is None:
                continue
            sight = self.sights[token.thread]
            sight.slots.append(token.slot)
            sync = joins.get((token.thread, token.fed_step))
            if sync is not None and token.tag == SYNC and (rows := self._rows(sight)):
                joined = [self.sights[child].owner for child in sync.joined]
                rows.append((token.slot, rows[-1][1].sync(joined)))
        for sight in self.sights:
            self._look(sight)

    def _look(self, sight: _Sight) -> None:
        """Find the view of each new token.

        A token is written by the query of the token before it: it sees what that one sees. The
        first tokens of main come from the prefill, and ``<async>`` from the promise's end.
        """
        if not self._rows(sight):
            return
        first = self.promise_ends.get(sight.thread.id)
        for index in range(sight.num_done, len(sight.tokens)):
            query = sight.tokens[index - 1] if index else first
            slot = self._num_prompt - 1 if query is None else query.slot
            if slot is None:
                return  # it is not fed, so nothing is known of the token behind it
            seen = self._seen(sight, index, slot)
            if not sight.seen or {**sight.seen[-1], "index": index} != seen:
                sight.seen.append(seen)
            sight.num_done += 1

    def _rows(self, sight: _Sight) -> list[tuple[int, Row]]:
        end, parent = self.promise_ends.get(sight.thread.id), sight.thread.parent
        if sight.rows:
            return sight.rows
        if parent is None:
            sight.rows.append((0, Row.of_main(sight.owner)))
        elif end is not None and (slot := end.slot) is not None:
            above = self.sights[parent]
            if rows := [row for first, row in self._rows(above) if first <= slot]:
                child = rows[-1].fork(parent=above.owner, child=sight.owner, promise_end_slot=slot)
                sight.rows.append((0, child))
        return sight.rows

    def _seen(self, sight: _Sight, index: int, query: int) -> Seen:
        place = bisect_right(sight.rows, query, key=lambda held: held[0]) - 1
        row = sight.rows[max(place, 0)][1]
        owners = row.cutoffs.keys() - {PROMPT_OWNER, sight.owner}  # of others nothing is seen
        others = [self.sights[owner - PROMPT_OWNER - 1] for owner in sorted(owners)]
        counts = {
            other.thread.id: count
            for other in others
            if (count := bisect_left(other.slots, row.end(query_slot=query, owner=other.owner)))
        }
        prompt = min(row.end(query_slot=query, owner=PROMPT_OWNER), self._num_prompt)
        return {"index": index, "prompt": prompt, "threads": counts}


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
        "critical_path_tokens": trace.critical_path,
        "parallelism": round(trace.parallelism, 4),
        "theoretical_speedup": round(trace.speedup_over_text(num_text_tokens), 4),
        "tokens_per_s": None if rate is None else round(rate, 2),
        "wall_s": round(trace.wall_s, 6),
        "cut_at": cut_at(trace),
    }


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


def _syncs(syncs: Syncs) -> list[dict[str, int | list[int]]]:
    return [
        {"thread": sync.thread, "joined": sync.joined, "step": sync.step or 0} for sync in syncs
    ]
