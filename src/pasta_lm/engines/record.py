"""Record a response in its trace while it runs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

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
