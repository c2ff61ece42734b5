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
from rich.table import Column, Table
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


def glyphs(where: Console) -> Glyphs:
    """Return characters that a console can show."""
    return Glyphs(*("=v^.-" if where.options.ascii_only else "\u2501\u2533\u253b\u2504\u2500"))


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
        """Return the name, and the progress in words."""
        state = "" if self.is_live else "done"
        if self.is_live and self.promised_tokens:
            state = _count(self.num_pieces, self.promised_tokens)
        style = f"bold {_style(self.thread)}".strip()
        name = Text(_name(self.thread, self.topic), style, no_wrap=True)
        name.truncate(max(1, width - len(state) - 1), overflow="ellipsis", pad=False)
        gap = " " * (width - name.cell_len - len(state))
        return Text.assemble(name, gap, (state, "dim"), no_wrap=True)

    def drawn(self, where: Console, width: int, num_lines: int) -> Group:
        """Return heading, the share of the promised tokens that is decoded as a bar, and text."""
        share = min(1.0, self.num_pieces / (self.promised_tokens or 1)) if self.is_live else 1.0
        num_filled, drawn_with = round(share * width), glyphs(where)
        bar = Text(drawn_with.decodes * num_filled, _style(self.thread))
        bar.append(drawn_with.open * (width - num_filled), "dim")
        return Group(self.heading(width), bar, self.tail(where, width, num_lines))

    def tail(self, where: Console, width: int, num_lines: int) -> Text:
        """Return the last lines of the text as they wrap, without empty lines."""
        recent = self.text[-3 * width * num_lines :]  # wrapping all each time is quadratic
        lines = [line for line in recent.wrap(where, width) if line.plain.strip()]
        return Text("\n").join(lines[-num_lines:])


class ThreadViews:
    """All threads of one response, drawn by rich."""

    def __init__(self) -> None:
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
        height, width = max(8, (options.height or where.height) - 2), options.max_width
        if main := self._views.get(0):
            text = main.tail(where, width, height // 3)
            yield from (main.heading(width), text)
            yield from self._grid(where, width, height - text.plain.count("\n") - 2)

    def _grid(self, where: Console, width: int, height: int) -> Iterator[RenderableType]:
        # Side by side, as many as fit, live ones first.
        num_columns = max(1, (width + len(GAP)) // (MIN_VIEW_WIDTH + len(GAP)))
        view_width = (width + len(GAP)) // num_columns - len(GAP)
        views = [view for view in self._views.values() if view.thread]
        by_interest = sorted(views, key=lambda view: (not view.is_live, -view.thread))
        num_shown = num_columns * max(1, height // 6)
        shown = sorted(by_interest[:num_shown], key=lambda view: view.thread)
        num_rows = max(1, -(-len(shown) // num_columns))
        num_lines = max(1, (height - 1) // num_rows - 3)
        cells = [view.drawn(where, view_width, num_lines) for view in shown]
        columns = (Column(width=view_width, no_wrap=True) for _ in range(num_columns))
        grid = Table.grid(*columns, padding=(1, len(GAP), 0, 0))
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
    """Return time, tokens of text and parallelism in one line, with the kind of the trace."""
    kind = "" if trace.kind is Kind.GENERATED else f" ({trace.kind.value})"
    is_simulated = trace.kind is Kind.SIMULATED
    parts = ["simulated, no wall clock" if is_simulated else f"{trace.wall_s:.2f} s{kind}"]
    if len(trace.threads) > 1:
        num_tokens = round(trace.parallelism * trace.critical_path)
        parts.append(f"{num_tokens} tokens of text on a critical path of {trace.critical_path}")
        parts.append(f"parallelism {trace.parallelism:.2f}")
    else:
        parts.append(f"{trace.num_tokens} tokens, one thread")
    if trace.tokens_per_s:
        parts.append(f"{trace.tokens_per_s:.1f} tokens/s")
    if trace.finish_reason == FinishReason.LENGTH:
        parts.append(f"cut at {trace.num_tokens} tokens")
    return ", ".join(parts)
