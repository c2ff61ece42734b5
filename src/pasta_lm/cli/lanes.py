"""Show threads side by side in the terminal as they are decoded: main on top, lanes below.

Takes the events of any engine. What does not fit is shown from its end, where it grows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pasta_lm.cli.terminal import glyphs, harmless, thread_name, thread_style
from pasta_lm.engines.request import (
    StreamEvent,
    Synced,
    TextDelta,
    ThreadEnded,
    ThreadStarted,
)

MIN_LANE_WIDTH = 24
GAP = 2
REFRESH_S = 1 / 20


@dataclass(slots=True)
class Lane:
    """What is shown of one thread."""

    thread: int
    topic: str | None
    promised_tokens: int | None
    text: Text = field(default_factory=Text)
    num_pieces: int = 0
    """Pieces of text so far; about as many as tokens."""
    is_live: bool = True

    @property
    def style(self) -> str:
        """Return the colour of its name and bar."""
        return thread_style(self.thread)

    @property
    def state(self) -> str:
        """Return how far it is, in words."""
        if not self.is_live:
            return "done"
        if not self.promised_tokens:
            return ""
        return f"{self.num_pieces} of ~{self.promised_tokens}"

    def bar(self, width: int, filled: str, unfilled: str) -> Text:
        """Return how much of what was promised is there."""
        promised = self.promised_tokens or 1
        part = min(1.0, self.num_pieces / promised) if self.is_live else 1.0
        num_filled = round(part * width)
        bar = Text(filled * num_filled, self.style)
        return bar.append(unfilled * (width - num_filled), "dim")


class Lanes:
    """The lanes of one response, drawn by rich."""

    def __init__(self, sample: int = 0) -> None:
        """Show one sample; the events of others are passed over."""
        self._sample = sample
        self._lanes: dict[int, Lane] = {}

    def take(self, event: StreamEvent) -> None:
        """Take what happened."""
        if event.sample != self._sample:
            return
        match event:
            case ThreadStarted():
                self._start(event)
            case TextDelta(thread=thread, text=text):
                self._lanes[thread].text.append(harmless(text))
                self._lanes[thread].num_pieces += 1
            case Synced(thread=thread, joined=joined):
                self._lanes[thread].text.append(f"[sync {' '.join(map(str, joined))}]", "bold")
            case ThreadEnded(thread=thread):
                if thread in self._lanes:
                    self._lanes[thread].is_live = False

    def _start(self, event: ThreadStarted) -> None:
        lane = Lane(event.thread, event.topic, event.promised_tokens)
        self._lanes[event.thread] = lane
        if event.parent is not None:
            name = thread_name(event.thread, event.topic)
            self._lanes[event.parent].text.append(f"[{name}]", lane.style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw what there is, in at most the height of the terminal."""
        height = max(8, (options.height or console.height) - 2)
        main = self._lanes.get(0)
        if main is None:
            return
        width = options.max_width
        text = _tail(console, main.text, width, height // 3)
        yield _heading(main, width)
        yield text
        num_used = 1 + max(1, text.plain.count("\n") + 1)
        yield from self._grid(console, width, height - num_used)

    def _grid(self, console: Console, width: int, height: int) -> Iterator[Table | Text]:
        num_columns = max(1, (width + GAP) // (MIN_LANE_WIDTH + GAP))
        lane_width = (width + GAP) // num_columns - GAP
        rows = max(1, height // 6)
        shown, num_hidden = self._shown(num_columns * rows)
        num_rows = max(1, -(-len(shown) // num_columns))
        num_lines = max(1, (height - 1) // num_rows - 3)
        for first in range(0, len(shown), num_columns):
            grid = Table.grid(padding=(0, GAP, 0, 0))
            for _ in range(num_columns):
                grid.add_column(width=lane_width, no_wrap=True)
            part = shown[first : first + num_columns]
            grid.add_row(*(self._cell(console, lane, lane_width, num_lines) for lane in part))
            yield Text()
            yield grid
        if num_hidden:
            yield Text(f"and {num_hidden} more", "dim")

    def _shown(self, num_most: int) -> tuple[list[Lane], int]:
        """Return the lanes to show, those that decode first, and how many there are besides."""
        lanes = [lane for lane in self._lanes.values() if lane.thread]
        by_interest = sorted(lanes, key=lambda lane: (not lane.is_live, -lane.thread))
        shown = sorted(by_interest[:num_most], key=lambda lane: lane.thread)
        return shown, len(lanes) - len(shown)

    @staticmethod
    def _cell(console: Console, lane: Lane, width: int, num_lines: int) -> Group:
        drawn_with = glyphs(console)
        bar = lane.bar(width, drawn_with.decodes, drawn_with.open)
        return Group(_heading(lane, width), bar, _tail(console, lane.text, width, num_lines))


def _heading(lane: Lane, width: int) -> Text:
    name = Text(thread_name(lane.thread, lane.topic), f"bold {lane.style}".strip(), no_wrap=True)
    name.truncate(max(1, width - len(lane.state) - 1), overflow="ellipsis")
    heading = name.copy()
    heading.append(" " * (width - name.cell_len - len(lane.state)))
    return heading.append(lane.state, "dim")


def _tail(console: Console, text: Text, width: int, num_lines: int) -> Text:
    """Return the last lines of a text as they wrap; empty ones would only take up room."""
    recent = text[-3 * width * num_lines :]  # to wrap all of it again would cost more and more
    lines = [line for line in recent.wrap(console, width) if line.plain.strip()]
    return Text("\n").join(lines[-num_lines:])


class Show(Protocol):
    """Takes events and shows them, now or within the twentieth part of a second."""

    def __call__(self, events: Iterable[StreamEvent]) -> None:
        """Take what happened."""


@contextmanager
def live_lanes(console: Console) -> Iterator[Show]:
    """Show lanes while the context lasts; they leave nothing behind."""
    lanes = Lanes()
    shown_at = 0.0
    with Live(lanes, console=console, auto_refresh=False, transient=True) as live:

        def show(events: Iterable[StreamEvent]) -> None:
            nonlocal shown_at
            for event in events:
                lanes.take(event)
            if time.monotonic() - shown_at >= REFRESH_S:
                live.refresh()
                shown_at = time.monotonic()

        yield show
