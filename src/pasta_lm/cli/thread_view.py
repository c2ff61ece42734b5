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
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pasta_lm.cli.terminal import GAP, can_animate, console, harmless
from pasta_lm.engines.request import StreamEvent, Synced, TextDelta, ThreadEnded, ThreadStarted
from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.trace import Kind, Trace
from pasta_lm.view.layout import RunLayout, layout

MIN_VIEW_WIDTH = 24
REFRESH_S = 1 / 20
MAX_LABEL = 22
THREAD_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red")
ShowEvents = Callable[[Iterable[StreamEvent]], None]
"""Shows events, at once or within ``REFRESH_S``."""


class Glyphs(NamedTuple):
    """The characters that pictures are drawn with."""

    decodes: str
    promises: str
    syncs: str
    waits: str
    open: str  # the part of a promised length that is not decoded yet


UNICODE, ASCII = Glyphs(*"\u2501\u2533\u253b\u2504\u2500"), Glyphs(*"=v^.-")


def glyphs(where: Console) -> Glyphs:
    """Return characters that a console can show."""
    return ASCII if where.options.ascii_only else UNICODE


def _style(thread: int) -> str:
    return THREAD_STYLES[(thread - 1) % len(THREAD_STYLES)] if thread else ""  # main has none


def _name(thread: int, topic: str | None) -> str:
    """Return the label of a thread; its number is readable without colour."""
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
        """Return the name, and the progress in words."""
        progress = _count(self.num_pieces, self.promised_tokens) if self.promised_tokens else ""
        state = progress if self.is_live else "done"
        style = f"bold {_style(self.thread)}".strip()
        name = Text(_name(self.thread, self.topic), style, no_wrap=True)
        name.truncate(max(1, width - len(state) - 1), overflow="ellipsis", pad=False)
        gap = " " * (width - name.cell_len - len(state))
        return Text.assemble(name, gap, (state, "dim"), no_wrap=True)

    def bar(self, width: int, drawn_with: Glyphs) -> Text:
        """Return the share of the promised tokens that is decoded, drawn as a bar."""
        part = min(1.0, self.num_pieces / (self.promised_tokens or 1)) if self.is_live else 1.0
        num_filled = round(part * width)
        bar = Text(drawn_with.decodes * num_filled, _style(self.thread))
        return bar.append(drawn_with.open * (width - num_filled), "dim")

    def tail(self, where: Console, width: int, num_lines: int) -> Text:
        """Return the last lines of the text as they wrap, without empty lines."""
        recent = self.text[-3 * width * num_lines :]  # wrapping all each time is quadratic
        lines = [line for line in recent.wrap(where, width) if line.plain.strip()]
        return Text("\n").join(lines[-num_lines:])


class ThreadViews:
    """All threads of one response, drawn by rich."""

    def __init__(self) -> None:
        """Begin before the first event."""
        self._views: dict[int, ThreadView] = {}

    def take(self, event: StreamEvent) -> None:
        """Update the views with an event."""
        match event:
            case ThreadStarted(thread=thread, parent=parent, topic=topic):
                self._views[thread] = ThreadView(thread, topic, event.promised_tokens)
                if parent is not None:
                    self._views[parent].text.append(f"[{_name(thread, topic)}]", _style(thread))
            case TextDelta(thread=thread, text=text):
                self._views[thread].text.append(harmless(text))
                self._views[thread].num_pieces += 1
            case Synced(thread=thread, joined=joined):
                self._views[thread].text.append(f"[sync {' '.join(map(str, joined))}]", "bold")
            case ThreadEnded(thread=thread) if thread in self._views:
                self._views[thread].is_live = False

    def __rich_console__(self, where: Console, options: ConsoleOptions) -> RenderResult:
        """Draw all threads within the height of the terminal."""
        height = max(8, (options.height or where.height) - 2)
        main = self._views.get(0)
        if main is None:
            return
        text = main.tail(where, options.max_width, height // 3)
        yield main.heading(options.max_width)
        yield text
        yield from self._grid(where, options.max_width, height - text.plain.count("\n") - 2)

    def _grid(self, where: Console, width: int, height: int) -> Iterator[RenderableType]:
        """Yield the threads side by side: live ones first, as many as fit."""
        num_columns = max(1, (width + len(GAP)) // (MIN_VIEW_WIDTH + len(GAP)))
        view_width = (width + len(GAP)) // num_columns - len(GAP)
        views = [view for view in self._views.values() if view.thread]
        by_interest = sorted(views, key=lambda view: (not view.is_live, -view.thread))
        shown = sorted(
            by_interest[: num_columns * max(1, height // 6)], key=lambda view: view.thread
        )
        num_rows = max(1, -(-len(shown) // num_columns))
        num_lines = max(1, (height - 1) // num_rows - 3)
        drawn_with = glyphs(where)
        cells = [
            Group(
                view.heading(view_width),
                view.bar(view_width, drawn_with),
                view.tail(where, view_width, num_lines),
            )
            for view in shown
        ]
        grid = Table.grid(padding=(1, len(GAP), 0, 0))
        for _ in range(num_columns):
            grid.add_column(width=view_width, no_wrap=True)
        for first in range(0, len(cells), num_columns):
            grid.add_row(*cells[first : first + num_columns])
        yield Text()
        yield grid
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

        def show(events: Iterable[StreamEvent]) -> None:
            nonlocal shown_at
            for event in events:
                views.take(event)
            if time.monotonic() - shown_at >= REFRESH_S:
                live.refresh()
                shown_at = time.monotonic()

        yield show


def picture(trace: Trace, where: Console) -> Text:
    """Draw one row for each thread, steps from left to right, as wide as the console at most."""
    drawn_with, places = glyphs(where), layout(trace)
    labels = [_name(thread.id, thread.topic) for thread in trace.threads]
    counts = [_count(thread.num_tokens, thread.promised_tokens) for thread in trace.threads]
    label_width = min(MAX_LABEL, max(map(cell_len, labels)))
    count_width = max(map(len, [*counts, "tokens"]))
    room = max(8, where.width - label_width - count_width - 2 * len(GAP))
    columns = min(room, places.num_passes)
    text = Text(no_wrap=True, end="")
    for thread, label, count in zip(trace.threads, labels, counts, strict=True):
        style = _style(thread.id)
        text.append(f"{set_cell_size(label, label_width)}{GAP}", style)
        text.append("".join(_cells(places, thread.id, columns, drawn_with)), style)
        text.append(f"{GAP}{count:>{count_width}}\n", "dim")
    axis = _axis(places.num_passes, columns)
    text.append(f"{'step':<{label_width}}{GAP}{axis}{GAP}{'tokens':>{count_width}}", "dim")
    return text


def _cells(places: RunLayout, thread: int, columns: int, drawn_with: Glyphs) -> Iterator[str]:
    """Yield one character for each column; a column stands for one step or several."""
    num_steps, spans = places.num_passes, places.lanes[thread].spans
    fed = {step for span in spans for step in range(span.first, span.stop)}
    forks = {edge.end for edge in places.forks if edge.source == thread}
    syncs = {edge.end for edge in places.joins if edge.target == thread}
    first, last = min(fed, default=num_steps), max(fed, default=-1)
    for column in range(columns):
        steps = range(column * num_steps // columns, (column + 1) * num_steps // columns)
        if not syncs.isdisjoint(steps):
            yield drawn_with.syncs
        elif not forks.isdisjoint(steps):
            yield drawn_with.promises
        elif not fed.isdisjoint(steps):
            yield drawn_with.decodes
        else:
            yield drawn_with.waits if first < steps[0] < last else " "


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
        err = console(sys.stderr)
        err.print()
        err.print(picture(trace, err))


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
