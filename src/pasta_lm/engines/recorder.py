"""Write the trace of a response while it runs; times are handed in, no clock is read."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from pasta_lm.interpreter.placement import Placement
from pasta_lm.interpreter.thread import Thread
from pasta_lm.interpreter.trace import Role, SyncRecord, ThreadRecord, TokenRecord, Trace
from pasta_lm.language.tags import TOKENS_PER_UNIT


class Recorder:
    """Fill one trace."""

    def __init__(self, trace: Trace, main: Thread) -> None:
        self.trace = trace
        self._pending: defaultdict[int, deque[TokenRecord]] = defaultdict(deque)
        self.thread_started(main)

    def thread_started(self, thread: Thread) -> None:
        """Add a thread; a deferred one has been added when it was promised."""
        if thread.id < len(self.trace.threads):
            return
        parent = thread.parent
        promised = None if thread.units is None else TOKENS_PER_UNIT * thread.units
        record = ThreadRecord(
            thread.id, None if parent is None else parent.id, thread.topic, promised
        )
        self.trace.threads.append(record)

    def decoded(
        self,
        thread: Thread,
        token: int | None,
        text: str,
        role: Role,
        *,
        step: int,
        t_s: float,
        is_forced: bool = False,
    ) -> None:
        """Add a token that a thread decoded in a step (-1: the prefill)."""
        record = TokenRecord(thread.id, token, text, role, step, t_s, is_forced)
        self.trace.tokens.append(record)
        self._pending[thread.id].append(record)
        self.trace.threads[thread.id].num_tokens += 1

    def fed(self, thread: Thread, placed: Placement, *, step: int) -> None:
        """Record where and in which step a thread fed its first unfed token."""
        token = self._pending[thread.id].popleft()
        token.fed_step = step
        token.slot, token.position, token.depth = placed.slot, placed.position, placed.depth
        self.trace.critical_path = max(self.trace.critical_path, placed.depth)
        record = self.trace.threads[thread.id]
        record.end_step = step
        if record.start_step is None:
            record.start_step = step

    def synced(self, thread: Thread, joined: Sequence[Thread], *, step: int, position: int) -> None:
        """Add a sync that was fed."""
        ids = [other.id for other in joined]
        self.trace.syncs.append(SyncRecord(thread.id, ids, step, position))

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
