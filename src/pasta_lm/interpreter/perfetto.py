"""A trace as Perfetto (Chrome trace event) JSON: one track a thread, arrows for fork and sync.

Source: the "Trace Event Format" that ui.perfetto.dev and chrome://tracing read; times in
microseconds.
"""

from __future__ import annotations

import json
from typing import Any

from pasta_lm.interpreter.trace import SyncRecord, ThreadRecord, TokenRecord, Trace

_PID = 1


def to_perfetto(trace: Trace) -> str:
    """Return the trace as JSON for ui.perfetto.dev."""
    events: list[dict[str, Any]] = [_name("process_name", 0, trace.model or "pasta-lm")]
    for thread in trace.threads:
        events.append(_name("thread_name", thread.id, _title(thread)))
        events.extend(_thread_events(trace, thread))
    for index, sync in enumerate(trace.syncs):
        events.extend(_sync_arrows(trace, index, sync))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)


def _title(thread: ThreadRecord) -> str:
    return "main" if thread.parent is None else f"{thread.id} {thread.topic}"


def _name(kind: str, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PID, "tid": tid, "args": {"name": name}}


def _step_start_us(trace: Trace, step: int) -> float:
    """Return when a step began: where the one before it ended (the prefill for step 0)."""
    if step <= 0 or not trace.step_s:
        return trace.prefill_s * 1e6
    return trace.step_s[min(step, len(trace.step_s)) - 1] * 1e6


def _thread_events(trace: Trace, thread: ThreadRecord) -> list[dict[str, Any]]:
    lane = trace.lane(thread.id)
    events = [_token_slice(trace, token) for token in lane if token.fed_step is not None]
    if thread.parent is not None and thread.start_step is not None:
        start = _step_start_us(trace, thread.start_step)
        flow = {"name": "fork", "cat": "fork", "id": thread.id, "pid": _PID, "ts": start}
        events.append({**flow, "ph": "s", "tid": thread.parent})
        events.append({**flow, "ph": "f", "bp": "e", "tid": thread.id})
    return events


def _token_slice(trace: Trace, token: TokenRecord) -> dict[str, Any]:
    assert token.fed_step is not None
    start = _step_start_us(trace, token.fed_step)
    end = _step_start_us(trace, token.fed_step + 1)
    args = {"depth": token.depth, "position": token.position, "slot": token.slot}
    return {
        "ph": "X",
        "name": token.text or token.role.value,
        "cat": token.role.value,
        "pid": _PID,
        "tid": token.thread,
        "ts": start,
        "dur": max(0.0, end - start),
        "args": args,
    }


def _sync_arrows(trace: Trace, index: int, sync: SyncRecord) -> list[dict[str, Any]]:
    if sync.step is None:
        return []
    events: list[dict[str, Any]] = []
    for child in sync.joined:
        end_step = trace.threads[child].end_step
        flow = {"name": "sync", "cat": "sync", "id": f"sync{index}-{child}", "pid": _PID}
        ts = _step_start_us(trace, end_step or 0)
        events.append({**flow, "ph": "s", "tid": child, "ts": ts})
        ts = _step_start_us(trace, sync.step)
        events.append({**flow, "ph": "f", "bp": "e", "tid": sync.thread, "ts": ts})
    return events
