"""Show the threads of a response: live and side by side, or as a still picture of a trace.

The live view takes the events of any engine: main on top, its threads below. A text that does not
fit is shown from its end, where it grows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pasta_lm.cli.terminal import (
    Glyphs,
    can_animate,
    glyphs,
    harmless,
    thread_name,
    thread_style,
)
from pasta_lm.cli.terminal import console as terminal
from pasta_lm.engines.request import StreamEvent, Synced, TextDelta, ThreadEnded, ThreadStarted
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.trace import Kind, ThreadRecord, Trace
from pasta_lm.view.layout import Layout, layout

MIN_VIEW_WIDTH = 24
COLUMN_GAP = 2
REFRESH_S = 1 / 20
MAX_LABEL = 22
GAP = "  "


@dataclass(slots=True)
class ThreadView:
    """The state of one thread in the live view."""

    thread: int
    topic: str | None
    promised_tokens: int | None
    text: Text = field(default_factory=Text)
    num_pieces: int = 0
    """Pieces of text so far, about one for each token."""
    is_live: bool = True

    @property
    def style(self) -> str:
        """Return the colour of the name and the bar."""
        return thread_style(self.thread)

    @property
    def state(self) -> str:
        """Return the progress in words."""
        if not self.is_live:
            return "done"
        if not self.promised_tokens:
            return ""
        return f"{self.num_pieces} of ~{self.promised_tokens}"

    def bar(self, width: int, filled: str, unfilled: str) -> Text:
        """Return the share of the promised tokens that is decoded, drawn as a bar."""
        promised = self.promised_tokens or 1
        part = min(1.0, self.num_pieces / promised) if self.is_live else 1.0
        num_filled = round(part * width)
        bar = Text(filled * num_filled, self.style)
        return bar.append(unfilled * (width - num_filled), "dim")


class ThreadViews:
    """All threads of one response, drawn by rich."""

    def __init__(self, sample: int = 0) -> None:
        """Show one sample; the events of other samples are ignored."""
        self._sample = sample
        self._views: dict[int, ThreadView] = {}

    def take(self, event: StreamEvent) -> None:
        """Update the views with an event."""
        if event.sample != self._sample:
            return
        match event:
            case ThreadStarted():
                self._start(event)
            case TextDelta(thread=thread, text=text):
                self._views[thread].text.append(harmless(text))
                self._views[thread].num_pieces += 1
            case Synced(thread=thread, joined=joined):
                self._views[thread].text.append(f"[sync {' '.join(map(str, joined))}]", "bold")
            case ThreadEnded(thread=thread):
                if thread in self._views:
                    self._views[thread].is_live = False

    def _start(self, event: ThreadStarted) -> None:
        view = ThreadView(event.thread, event.topic, event.promised_tokens)
        self._views[event.thread] = view
        if event.parent is not None:
            name = thread_name(event.thread, event.topic)
            self._views[event.parent].text.append(f"[{name}]", view.style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw all threads within the height of the terminal."""
        height = max(8, (options.height or console.height) - 2)
        main = self._views.get(0)
        if main is None:
            return
        width = options.max_width
        text = _tail(console, main.text, width, height // 3)
        yield _heading(main, width)
        yield text
        num_used = 1 + max(1, text.plain.count("\n") + 1)
        yield from self._grid(console, width, height - num_used)

    def _grid(self, console: Console, width: int, height: int) -> Iterator[Table | Text]:
        num_columns = max(1, (width + COLUMN_GAP) // (MIN_VIEW_WIDTH + COLUMN_GAP))
        view_width = (width + COLUMN_GAP) // num_columns - COLUMN_GAP
        rows = max(1, height // 6)
        shown, num_hidden = self._shown(num_columns * rows)
        num_rows = max(1, -(-len(shown) // num_columns))
        num_lines = max(1, (height - 1) // num_rows - 3)
        for first in range(0, len(shown), num_columns):
            grid = Table.grid(padding=(0, COLUMN_GAP, 0, 0))
            for _ in range(num_columns):
                grid.add_column(width=view_width, no_wrap=True)
            part = shown[first : first + num_columns]
            grid.add_row(*(self._cell(console, view, view_width, num_lines) for view in part))
            yield Text()
            yield grid
        if num_hidden:
            yield Text(f"and {num_hidden} more", "dim")

    def _shown(self, max_shown: int) -> tuple[list[ThreadView], int]:
        """Return the views to show, live threads first, and the number of hidden ones."""
        views = [view for view in self._views.values() if view.thread]
        by_interest = sorted(views, key=lambda view: (not view.is_live, -view.thread))
        shown = sorted(by_interest[:max_shown], key=lambda view: view.thread)
        return shown, len(views) - len(shown)

    @staticmethod
    def _cell(console: Console, view: ThreadView, width: int, num_lines: int) -> Group:
        drawn_with = glyphs(console)
        bar = view.bar(width, drawn_with.decodes, drawn_with.open)
        return Group(_heading(view, width), bar, _tail(console, view.text, width, num_lines))


def _heading(view: ThreadView, width: int) -> Text:
    name = Text(thread_name(view.thread, view.topic), f"bold {view.style}".strip(), no_wrap=True)
    name.truncate(max(1, width - len(view.state) - 1), overflow="ellipsis")
    heading = name.copy()
    heading.append(" " * (width - name.cell_len - len(view.state)))
    return heading.append(view.state, "dim")


def _tail(console: Console, text: Text, width: int, num_lines: int) -> Text:
    """Return the last lines of a text as they wrap, without empty lines."""
    recent = text[-3 * width * num_lines :]  # wrapping the whole text each time is quadratic
    lines = [line for line in recent.wrap(console, width) if line.plain.strip()]
    return Text("\n").join(lines[-num_lines:])


class ShowEvents(Protocol):
    """Shows events, at once or within ``REFRESH_S``."""

    def __call__(self, events: Iterable[StreamEvent]) -> None:
        """Show the changes."""


@contextmanager
def live_threads(console: Console) -> Iterator[ShowEvents]:
    """Show the threads while the context lasts; nothing stays on the screen after it."""
    views = ThreadViews()
    shown_at = 0.0
    with Live(views, console=console, auto_refresh=False, transient=True) as live:

        def show(events: Iterable[StreamEvent]) -> None:
            nonlocal shown_at
            for event in events:
                views.take(event)
            if time.monotonic() - shown_at >= REFRESH_S:
                live.refresh()
                shown_at = time.monotonic()

        yield show


def picture(trace: Trace, width: int, glyphs: Glyphs) -> Text:
    """Draw one row for each thread, steps from left to right, in ``width`` characters at most."""
    labels = [thread_name(thread.id, thread.topic) for thread in trace.threads]
    label_width = min(MAX_LABEL, max(map(cell_len, labels)))
    counts = [_count(thread) for thread in trace.threads]
    count_width = max(map(len, [*counts, "tokens"]))
    room = max(8, width - label_width - count_width - 2 * len(GAP))
    places = layout(trace)
    columns = min(room, places.num_passes)
    text = Text(no_wrap=True, end="")
    for thread, label, count in zip(trace.threads, labels, counts, strict=True):
        style = thread_style(thread.id)
        text.append(set_cell_size(label, label_width), style)
        text.append(GAP)
        cells = "".join(_cells(places, thread.id, columns, glyphs))
        text.append(cells, style)
        text.append(f"{GAP}{count:>{count_width}}\n", "dim")
    axis = _axis(places.num_passes, columns)
    text.append(f"{'step':<{label_width}}{GAP}{axis}{GAP}{'tokens':>{count_width}}", "dim")
    return text


def _count(thread: ThreadRecord) -> str:
    if thread.promised_tokens is None:
        return str(thread.num_tokens)
    return f"{thread.num_tokens} of ~{thread.promised_tokens}"


def _cells(places: Layout, thread: int, columns: int, glyphs: Glyphs) -> Iterator[str]:
    """Yield one character for each column; a column stands for one step or several."""
    num_steps, spans = places.num_passes, places.lanes[thread].spans
    fed = {step for span in spans for step in range(span.first, span.stop)}
    forks = {edge.end for edge in places.forks if edge.source == thread}
    syncs = {edge.end for edge in places.joins if edge.target == thread}
    first, last = min(fed, default=num_steps), max(fed, default=-1)
    for column in range(columns):
        steps = range(column * num_steps // columns, (column + 1) * num_steps // columns)
        if not syncs.isdisjoint(steps):
            yield glyphs.syncs
        elif not forks.isdisjoint(steps):
            yield glyphs.promises
        elif not fed.isdisjoint(steps):
            yield glyphs.decodes
        else:
            yield glyphs.waits if first < steps[0] < last else " "


def _axis(num_steps: int, columns: int) -> str:
    """Return the line of step numbers, one every ten columns."""
    axis = ""
    for column in range(0, columns, 10):
        number = str(column * num_steps // columns)
        if column + len(number) <= columns:
            axis = f"{axis:<{column}}{number}"
    return f"{axis:<{columns}}"


def print_picture(trace: Trace) -> None:
    """Print the threads of a trace on a terminal, where there are several."""
    if can_animate() and len(trace.threads) > 1:
        err = terminal(sys.stderr)
        err.print()
        err.print(picture(trace, err.width, glyphs(err)))


def summary(trace: Trace) -> str:
    """Return time, tokens and parallelism in one line, with the kind of the trace.

    The tokens are those of the text, so that they divided by the steps give the parallelism.
    """
    num_tokens = round(trace.parallelism * trace.critical_path)
    parts = [f"{trace.wall_s:.2f} s"]
    if trace.kind is Kind.SIMULATED:
        parts = ["simulated, no wall clock"]
    elif trace.kind is not Kind.GENERATED:
        parts = [f"{trace.wall_s:.2f} s ({trace.kind.value})"]
    if len(trace.threads) > 1:
        parts.append(f"{num_tokens} tokens of text on a critical path of {trace.critical_path}")
        parts.append(f"parallelism {trace.parallelism:.2f}")
    else:
        parts.append(f"{trace.num_tokens} tokens, one thread")
    if trace.tokens_per_s:
        parts.append(f"{trace.tokens_per_s:.1f} tokens/s")
    if trace.finish_reason == FinishReason.LENGTH:
        parts.append(f"cut at {trace.num_tokens} tokens")
    return ", ".join(parts)
