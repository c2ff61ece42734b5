"""Show the threads of a response: live and side by side, or as a still picture of a trace.

The live view takes the events of any engine: main on top, its threads below. A text that does not
fit is shown from its end, where it grows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from pasta_lm.cli.terminal import GAP, can_animate, console, harmless, say
from pasta_lm.engines import request
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.trace import Kind, Trace
from pasta_lm.parts.declared import NAME
from pasta_lm.view.run_data import LiveRun

MIN_VIEW_WIDTH = 22
REFRESH_S = 1 / 20
MAX_LABEL, MIN_BARS = 22, 8
THREAD_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red")
ShowEvents = Callable[[Iterable[request.StreamEvent]], None]
"""Shows events, at latest after ``REFRESH_S``."""


def _marks(where: Console) -> tuple[str, ...]:
    # A thread in a pass: absent, waiting, decoding, ending a promise, at a sync. Of several passes
    # in one column the last of these is drawn.
    return tuple(" .=v^" if where.options.ascii_only else " \u2504\u2501\u2533\u253b")


def _style(thread: int) -> str:
    return THREAD_STYLES[(thread - 1) % len(THREAD_STYLES)] if thread else ""  # main has none


def _name(thread: int, topic: str | None) -> str:
    # Readable without colour: it begins with the number.
    return "main" if topic is None else f"{thread} {' '.join(harmless(topic).split())}"


def _count(num_tokens: int, promised: int | None) -> str:
    return f"{num_tokens} of ~{promised}" if promised else str(num_tokens)


@dataclass(slots=True)
class ThreadView:
    """The state of one thread in the live view."""

    thread: int
    topic: str | None
    promised_tokens: int | None
    text: Text = field(default_factory=Text)
    num_pieces: int = 0  # pieces of text so far, about one for each token
    is_live: bool = True

    def heading(self, width: int) -> Text:
        state = "" if self.is_live else "done"
        if self.is_live and self.promised_tokens:
            state = _count(self.num_pieces, self.promised_tokens)
        name = Text(_name(self.thread, self.topic), f"bold {_style(self.thread)}", no_wrap=True)
        name.truncate(max(1, width - len(state) - 1), overflow="ellipsis")
        gap = " " * (width - name.cell_len - len(state))
        return Text.assemble(name, gap, (state, "dim"), no_wrap=True)

    def drawn(self, where: Console, width: int, num_lines: int) -> Group:
        """Return heading, the share of the promised tokens that is decoded as a bar, and text."""
        share = min(1.0, self.num_pieces / (self.promised_tokens or 1)) if self.is_live else 1.0
        num_filled, (_, waits, decodes, *_) = round(share * width), _marks(where)
        bar = Text(decodes * num_filled, _style(self.thread))
        bar.append(waits * (width - num_filled), "dim")
        return Group(self.heading(width), bar, self.tail(where, width, num_lines))

    def tail(self, where: Console, width: int, num_lines: int) -> Text:
        recent = self.text[-3 * width * num_lines :]  # wrapping all each time is quadratic
        lines = [line for line in recent.wrap(where, width) if line.plain.strip()]
        return Text("\n").join(lines[-num_lines:])


class ThreadViews:
    """All threads of one response, drawn by rich."""

    def __init__(self) -> None:
        self._views: dict[int, ThreadView] = {}

    def take(self, event: request.StreamEvent) -> None:
        match event:
            case request.ThreadStarted(thread=thread, parent=parent, topic=topic):
                self._views[thread] = ThreadView(thread, topic, event.promised_tokens)
                if parent is not None:
                    self._views[parent].text.append(f"[{_name(thread, topic)}]", _style(thread))
            case request.ThoughtDelta(thread=thread, text=text):
                self._views[thread].text.append(harmless(text), "dim")
            case request.TextDelta(thread=thread, text=text):
                self._views[thread].text.append(harmless(text))
                self._views[thread].num_pieces += 1
            case request.Synced(thread=thread, joined=joined):
                self._views[thread].text.append(f"[sync {' '.join(map(str, joined))}]", "bold")
            case request.ThreadEnded(thread=thread) if thread in self._views:
                self._views[thread].is_live = False

    def __rich_console__(self, where: Console, options: ConsoleOptions) -> RenderResult:
        """Draw main, and below it as many other threads as fit, live ones first."""
        if 0 not in self._views:
            return
        main, *views = self._views.values()
        height, width = max(8, (options.height or where.height) - 2), options.max_width
        text = main.tail(where, width, height // 3)
        yield from (main.heading(width), text, Text())
        height -= text.plain.count("\n") + 2

        num_columns = max(1, width // (MIN_VIEW_WIDTH + len(GAP)))
        view_width = width // num_columns - len(GAP)
        by_interest = sorted(views, key=lambda view: (not view.is_live, -view.thread))
        num_shown = num_columns * max(1, height // 6)
        shown = sorted(by_interest[:num_shown], key=lambda view: view.thread)
        num_rows = max(1, -(-len(shown) // num_columns))
        num_lines = max(1, (height - 1) // num_rows - 3)
        cells = [view.drawn(where, view_width, num_lines) for view in shown]
        yield Columns(cells, padding=(1, len(GAP), 0, 0), width=view_width)
        if len(views) > len(shown):
            yield Text(f"and {len(views) - len(shown)} more", "dim")


@contextmanager
def live_threads() -> Iterator[ShowEvents]:
    """Show the threads while the context lasts, in a terminal; nothing stays on the screen."""
    if not can_animate():
        yield lambda events: None
        return
    views = ThreadViews()
    shown_at = 0.0
    with Live(views, console=console(sys.stderr), auto_refresh=False, transient=True) as live:

        def show(events: Iterable[request.StreamEvent]) -> None:
            nonlocal shown_at
            for event in events:
                views.take(event)
            if time.monotonic() - shown_at >= REFRESH_S:
                live.refresh()
                shown_at = time.monotonic()

        yield show


def picture(trace: Trace, where: Console) -> Text:
    """Draw one row for each thread, steps from left to right, as wide as the console at most."""
    run, marks = LiveRun.of(trace), _marks(where)
    labels = [_name(thread.id, thread.topic) for thread in trace.threads]
    is_wide = where.width >= MAX_LABEL + MIN_VIEW_WIDTH  # with room for what was promised
    counts = [_count(t.num_tokens, is_wide and t.promised_tokens) for t in trace.threads]
    count_width = max(map(len, [*counts, "tokens"]))
    room = where.width - count_width - 2 * len(GAP)
    label_width = min(MAX_LABEL, max(map(cell_len, labels)), room - MIN_BARS)
    room -= label_width
    columns = min(room, run.num_passes)
    text = Text(no_wrap=True, end="")
    for thread, label, count in zip(trace.threads, labels, counts, strict=True):
        row = _row(run, thread.id, columns, marks)
        text.append(f"{set_cell_size(label, label_width)}{GAP}{row}", _style(thread.id))
        text.append(f"{GAP}{count:>{count_width}}\n", "dim")
    numbers = (column * run.num_passes // columns for column in range(0, columns - 3, 10))
    axis = "".join(f"{number:<10}" for number in numbers)[:columns]
    line = f"{'step':<{label_width}}{GAP}{axis:<{columns}}{GAP}{'tokens':>{count_width}}"
    return text.append(line, "dim")


def _row(run: LiveRun, thread: int, columns: int, marks: tuple[str, ...]) -> str:
    absent, waits, decodes, promises, syncs = marks
    num_passes, spans = run.num_passes, run.lanes[thread].spans
    row = [absent] * (num_passes + 1)
    if spans:
        row[spans[0].first : spans[-1].stop] = waits * (spans[-1].stop - spans[0].first)
    for span in spans:
        row[span.first : span.stop] = decodes * (span.stop - span.first)
    for edge in run.forks:
        if edge.source == thread:
            row[edge.end] = promises
    for edge in run.joins:
        if edge.target == thread:
            row[edge.end] = syncs
    bounds = [column * num_passes // columns for column in range(columns + 1)]
    cells = (row[first:stop] for first, stop in zip(bounds, bounds[1:], strict=False))
    return "".join(max(cell, key=marks.index) for cell in cells)


def print_figures(trace: Trace, *, with_picture: bool = True) -> None:
    """Print the summary of an answer on standard error; in a terminal also several threads."""
    if with_picture and can_animate() and len(trace.threads) > 1:
        err = console(sys.stderr)
        err.print()
        err.print(picture(trace, err))
    say(summary(trace))


def summary(trace: Trace) -> str:
    """Return time, tokens of text and parallelism in one line, with the kind of the trace."""
    kind = "" if trace.kind is Kind.GENERATED else f" ({trace.kind.value})"
    is_simulated = trace.kind is Kind.SIMULATED
    parts = ["simulated, no wall clock" if is_simulated else f"{trace.wall_s:.2f} s{kind}"]
    if len(trace.threads) > 1 and not trace.parallelism:  # no token behind the first was needed
        parts.append(f"{len(trace.threads) - 1} threads scored in {trace.forward_passes} steps")
    elif len(trace.threads) > 1:
        num_tokens = round(trace.parallelism * trace.critical_path)
        ratio = trace.parallelism
        word = "fewer" if ratio >= 1 else "more"
        steps = f"{max(ratio, 1 / ratio):.2f} times {word} than one thread's"
        text = f"{num_tokens} tokens of text by {len(trace.threads)} threads"
        parts.append(f"{text} in {trace.critical_path} steps, {steps}")
    else:
        parts.append(f"{trace.num_tokens} tokens, one thread")
    if trace.tokens_per_s:
        parts.append(f"{trace.tokens_per_s:.1f} tokens/s")
    if trace.finish_reason == FinishReason.LENGTH:
        has_given = trace.strategy == NAME  # text, which counts for no limit
        num_tokens = trace.num_content_tokens if has_given else trace.num_tokens
        apart = " (keys and questions not counted)" if has_given else ""
        parts.append(f"cut at {num_tokens} tokens{apart}")
    return ", ".join(parts)
