"""Records of a response: its trace while it runs, and one row of a file when it is finished."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self, TypeVar

from pasta_lm.engines.request import Answer
from pasta_lm.errors import InputError
from pasta_lm.interpreter import speed
from pasta_lm.interpreter.placement import Placement
from pasta_lm.interpreter.thread import Thread
from pasta_lm.interpreter.trace import Role, SyncRecord, ThreadRecord, TokenRecord, Trace, TraceNews

Record = TypeVar("Record")


class Recorder:
    """Fills the trace of a response while it runs; times are handed in, no clock is read."""

    def __init__(self, trace: Trace, main: Thread) -> None:
        self.trace = trace
        self.step = -1  # the pass to which all records belong; -1: the prefill
        self._pending: defaultdict[int, deque[TokenRecord]] = defaultdict(deque)
        self._known: dict[str, int] = {}  # how many records of each list ``news`` has returned
        self._unfed: list[tuple[int, TokenRecord]] = []  # those tokens of them that were not fed
        self.thread_started(main)

    def thread_started(self, thread: Thread) -> None:
        """Add a thread; a deferred one has been added when it was promised."""
        if thread.id < len(self.trace.threads):
            return
        parent = None if thread.parent is None else thread.parent.id
        record = ThreadRecord(thread.id, parent, thread.topic, thread.promised_tokens)
        self.trace.threads.append(record)

    def decoded(
        self,
        thread: Thread,
        token: int | None,
        text: str,
        role: Role,
        *,
        t_s: float,
        is_forced: bool = False,
        tag: str | None = None,
    ) -> None:
        record = TokenRecord(thread.id, token, text, role, self.step, t_s, is_forced, tag=tag)
        self.trace.tokens.append(record)
        self._pending[thread.id].append(record)
        self.trace.threads[thread.id].num_tokens += 1

    def forked(self, parent: Thread, child: Thread) -> None:
        """Record the thread that the token just decoded by its parent forks."""
        self._pending[parent.id][-1].forks = child.id
        self.thread_started(child)

    def fed(self, thread: Thread, placed: Placement) -> None:
        """Record where a thread fed its first unfed token."""
        token = self._pending[thread.id].popleft()
        token.fed_step = self.step
        token.slot, token.position, token.depth = placed.slot, placed.position, placed.depth
        self.trace.critical_path = max(self.trace.critical_path, placed.depth)
        record = self.trace.threads[thread.id]
        record.end_step = self.step
        if record.start_step is None:
            record.start_step = self.step

    def synced(self, thread: Thread, joined: Sequence[Thread], position: int) -> None:
        ids = [other.id for other in joined]
        self.trace.syncs.append(SyncRecord(thread.id, ids, self.step, position))

    def passed(self, t_s: float) -> None:
        """Record the end of a forward pass after the prefill."""
        self.trace.step_s.append(t_s)
        self.trace.forward_passes += 1

    def finished(self, threads: Sequence[Thread], reason: str, *, t_s: float) -> None:
        """Record the end of the response."""
        for thread in threads:
            self.thread_started(thread)
            if thread.finish_reason is not None:
                self.trace.threads[thread.id].finish_reason = thread.finish_reason.value
        self.trace.finish_reason = reason
        self.trace.wall_s = t_s

    def news(self) -> TraceNews | None:
        """Return the records that are new since the last call; None: there are none."""
        trace, first = self.trace, self._known.get("tokens", 0)
        threads, tokens = self._new("threads", trace.threads), self._new("tokens", trace.tokens)
        syncs, step_s = self._new("syncs", trace.syncs), self._new("step_s", trace.step_s)
        fed = [pair for pair in self._unfed if pair[1].fed_step is not None]
        waiting = [*self._unfed, *enumerate(tokens, first)]
        self._unfed = [pair for pair in waiting if pair[1].fed_step is None]
        if not (threads or tokens or fed or step_s):
            return None
        return TraceNews(
            kind=trace.kind,
            prefill_s=trace.prefill_s,
            step_s=tuple(step_s),
            threads=tuple(replace(record) for record in threads),
            tokens=tuple(replace(record) for record in tokens),
            fed=tuple((index, replace(record)) for index, record in fed),
            syncs=tuple(replace(record, joined=[*record.joined]) for record in syncs),
        )

    def _new(self, name: str, records: list[Record]) -> list[Record]:
        first, self._known[name] = self._known.get(name, 0), len(records)
        return records[first:]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """One answer as a row of a file: its text, how it ended, and the counts behind its speed."""

    text: str  # without tags
    program: str  # the written form; the annotator form where blocks promise no length (APAR)
    finish_reason: str  # ``stop``, or the limit that cut it
    num_illegal: int  # tags where the grammar has none
    num_content_tokens: int  # tokens of all threads, tags and topics excluded
    critical_path: int  # tokens that were decoded one after another, tags included
    num_threads: int | None = None  # main included; None: not recorded
    kind: str | None = None  # how it came about, a value of ``Kind``; None: not recorded
    wall_s: float | None = None  # seconds, if decoded alone; None among others

    @classmethod
    def of(cls, answer: Answer, *, is_timed: bool = False) -> Self:
        """Return the record of an answer; ``is_timed`` if it was decoded alone."""
        trace = answer.trace
        return cls(
            text=answer.text,
            program=answer.program,
            finish_reason=answer.finish_reason,
            num_illegal=trace.num_illegal,
            num_content_tokens=trace.num_content_tokens,
            critical_path=trace.critical_path,
            num_threads=len(trace.threads),
            kind=trace.kind.value,
            wall_s=trace.wall_s if is_timed else None,
        )

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read the record's keys from a row, or raise an ``InputError``; others are left alone."""
        values = {field.name: row[field.name] for field in fields(cls) if field.name in row}
        for key in ("text", "program", "finish_reason"):
            if not isinstance(values.get(key), str):
                raise InputError(f"{key!r} is {values.get(key)!r}, not a text")
        for key in ("num_illegal", "num_content_tokens", "critical_path"):
            if type(values.get(key)) is not int or values[key] < 0:
                raise InputError(f"{key!r} is {values.get(key)!r}, not a count")
        wall_s = values.get("wall_s")
        if wall_s is not None and (type(wall_s) not in (int, float) or wall_s <= 0):
            raise InputError(f"'wall_s' is {wall_s!r}, not a time in seconds")
        return cls(**values)

    def to_row(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_well_formed(self) -> bool:
        """Return whether it ended by itself and every tag stood where the grammar has one."""
        return self.finish_reason == "stop" and not self.num_illegal

    @property
    def parallelism(self) -> float:
        """Return content tokens / critical path; exactly 1 for one thread."""
        counts = self.num_content_tokens, self.critical_path
        return speed.parallelism(*counts, is_parallel=self.num_threads != 1)

    def theoretical_speedup(self, baseline: AnswerRecord) -> float:
        """Return the theoretical speedup over the baseline's answer to the same prompt."""
        return speed.theoretical_speedup(baseline.critical_path, self.critical_path)

    def realised_speedup(self, baseline: AnswerRecord) -> float | None:
        """Return the realised speedup over the baseline's answer; None unless both were timed."""
        if not self.wall_s or not baseline.wall_s:
            return None
        return speed.realised_speedup(baseline.wall_s, self.wall_s)
