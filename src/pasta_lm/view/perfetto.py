"""A trace as JSON for ui.perfetto.dev: one track a thread, arrows for forks and syncs.

Source: the "Trace Event Format" of chrome://tracing; times in microseconds.
"""

from __future__ import annotations

import json
from typing import Any

from pasta_lm.interpreter.trace import TokenRecord, Trace
from pasta_lm.view.layout import layout

Event = dict[str, Any]
_PROCESS = 1  # Perfetto wants one


def to_perfetto(trace: Trace) -> str:
    """Return the trace as JSON."""
    events = [_name("process_name", 0, trace.model or "pasta-lm")]
    for thread in trace.threads:
        title = "main" if thread.parent is None else f"{thread.id} {thread.topic}"
        events.append(_name("thread_name", thread.id, title))
        events += [
            _slice(trace, token)
            for token in trace.tokens_of(thread.id)
            if token.fed_step is not None
        ]
    places = layout(trace)
    for edge in places.forks:
        events += _arrow(trace, "fork", edge.target, (edge.source, edge.start), edge[2:])
    for number, edge in enumerate(places.joins):
        last = edge.source, edge.start - 1  # an arrow starts inside a slice
        events += _arrow(trace, "sync", f"sync{number}-{edge.source}", last, edge[2:])
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)


def _name(kind: str, track: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _arrow(
    trace: Trace, kind: str, number: int | str, start: tuple[int, int], end: tuple[int, int]
) -> list[Event]:
    """Return an arrow between two places, each a thread and the step that begins there."""
    flow = {"name": kind, "cat": kind, "id": number, "pid": _PROCESS}
    return [
        {**flow, "ph": "s", "tid": start[0], "ts": _step_start_us(trace, start[1])},
        {**flow, "ph": "f", "bp": "e", "tid": end[0], "ts": _step_start_us(trace, end[1])},
    ]


def _slice(trace: Trace, token: TokenRecord) -> Event:
    assert token.fed_step is not None
    start = _step_start_us(trace, token.fed_step)
    end = _step_start_us(trace, token.fed_step + 1)
    return {
        "ph": "X",
        "name": token.text or token.role.value,
        "cat": token.role.value,
        "pid": _PROCESS,
        "tid": token.thread,
        "ts": start,
        "dur": max(0.0, end - start),
        "args": {"depth": token.depth, "position": token.position, "slot": token.slot},
    }


def _step_start_us(trace: Trace, step: int) -> float:
    """Return the time at which a step began: the end of the one before it, or of the prefill."""
    if step <= 0 or not trace.step_s:
        return trace.prefill_s * 1e6
    return trace.step_s[min(step, len(trace.step_s)) - 1] * 1e6
