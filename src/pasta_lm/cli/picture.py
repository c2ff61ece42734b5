"""Draw a trace as a still picture: a lane for each thread, steps from left to right."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pasta_lm.cli.terminal import Glyphs, thread_name, thread_style
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.trace import Kind, ThreadRecord, Trace

MAX_LABEL = 22
GAP = "  "


def picture(trace: Trace, width: int, glyphs: Glyphs) -> Text:
    """Return the picture, no line wider than ``width`` characters."""
    labels = [thread_name(lane.id, lane.topic) for lane in trace.threads]
    label_width = min(MAX_LABEL, max(map(cell_len, labels)))
    counts = [_count(lane) for lane in trace.threads]
    count_width = max(map(len, [*counts, "tokens"]))
    room = max(8, width - label_width - count_width - 2 * len(GAP))
    num_steps = max(1, trace.forward_passes)
    columns = min(room, num_steps)
    text = Text(no_wrap=True, end="")
    for lane, label, count in zip(trace.threads, labels, counts, strict=True):
        style = thread_style(lane.id)
        text.append(set_cell_size(label, label_width), style)
        text.append(GAP)
        cells = "".join(_cells(trace, lane, columns, glyphs))
        text.append(cells, style)
        text.append(f"{GAP}{count:>{count_width}}\n", "dim")
    axis = _axis(num_steps, columns)
    text.append(f"{'step':<{label_width}}{GAP}{axis}{GAP}{'tokens':>{count_width}}", "dim")
    return text


def _count(lane: ThreadRecord) -> str:
    if lane.promised_tokens is None:
        return str(lane.num_tokens)
    return f"{lane.num_tokens} of ~{lane.promised_tokens}"


def _cells(trace: Trace, lane: ThreadRecord, columns: int, glyphs: Glyphs) -> Iterator[str]:
    """Yield one character a column; a column stands for one step or several."""
    num_steps = max(1, trace.forward_passes)
    tokens = trace.lane(lane.id)
    fed = {token.fed_step for token in tokens if token.fed_step is not None}
    forks = {child.start_step for child in trace.threads if child.parent == lane.id}
    syncs = {sync.step for sync in trace.syncs if sync.thread == lane.id}
    last = max(fed, default=-1)
    for column in range(columns):
        steps = range(column * num_steps // columns, (column + 1) * num_steps // columns)
        if not syncs.isdisjoint(steps):
            yield glyphs.syncs
        elif not forks.isdisjoint(steps):
            yield glyphs.promises
        elif not fed.isdisjoint(steps):
            yield glyphs.decodes
        else:
            has_begun = lane.start_step is not None and lane.start_step < steps[0]
            yield glyphs.waits if has_begun and steps[0] < last else " "


def _axis(num_steps: int, columns: int) -> str:
    """Return a line that numbers the first step of some columns."""
    axis = ""
    for column in range(0, columns, 10):
        number = str(column * num_steps // columns)
        if column + len(number) <= columns:
            axis = f"{axis:<{column}}{number}"
    return f"{axis:<{columns}}"


def summary(trace: Trace) -> str:
    """Return one line: time, critical path, parallelism, how they came about, whether cut."""
    in_all = f"critical path {trace.critical_path} of {trace.num_tokens} tokens"
    is_parallel = len(trace.threads) > 1
    gain = f"parallelism {trace.parallelism:.2f}" if is_parallel else "one thread"
    end = ", cut short by a limit" if trace.finish_reason == FinishReason.LENGTH else ""
    if trace.kind is Kind.SIMULATED:
        return f"simulated, no wall clock: {in_all}, {gain}{end}"
    kind = "" if trace.kind is Kind.GENERATED else f" ({trace.kind.value})"
    return f"{trace.wall_s:.2f} s, {in_all}, {gain}{kind}{end}"
