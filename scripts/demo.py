"""Show the built-in model and its sequential baseline answering one prompt, on one clock.

Both write their own text. Each is decoded alone, so that neither slows the other, and every event
is recorded with its time. The terminal shows both recordings in slow motion.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from pasta_lm import Pasta, SamplingParams
from pasta_lm.cli.terminal import can_animate, console, glyphs, silence_libraries
from pasta_lm.cli.thread_view import ThreadViews, picture, summary
from pasta_lm.engines.request import Answer, Finished, StreamEvent
from pasta_lm.tasks.registry import example

FAMILY = "tallies"
NUM_RUNS = 5
SHOWN_S = 10.0
KIND = "generated: a model of four million parameters, its own text, greedy"


@dataclass(frozen=True, slots=True)
class Recording:
    """One answer, with the time of every event."""

    name: str
    answer: Answer
    events: list[tuple[float, StreamEvent]]

    @property
    def wall_s(self) -> float:
        """Return the seconds that the answer took."""
        return self.answer.trace.wall_s


def record(name: str, model: Pasta, prompt: str) -> Recording:
    """Decode a prompt several times and return the run of median duration."""
    runs = []
    for _ in range(NUM_RUNS + 1):  # the first run warms up
        began_s = time.perf_counter()
        events = []
        for event in model.stream(prompt, SamplingParams(), strategy=name):
            events.append((time.perf_counter() - began_s, event))
        finished = events[-1][1]
        assert isinstance(finished, Finished)
        runs.append(Recording(name, finished.answer, events))
    return sorted(runs[1:], key=lambda run: run.wall_s)[NUM_RUNS // 2]


class Race:
    """Both answers at one moment of the clock."""

    def __init__(self, recordings: list[Recording], stretch: float) -> None:
        """Start the clock at zero."""
        self._stretch = stretch
        self._rows = [
            (recording, ThreadViews(), iter(recording.events)) for recording in recordings
        ]
        self._next = [next(events) for _, _, events in self._rows]
        self.now_s = 0.0

    def go_to(self, now_s: float) -> None:
        """Apply all events up to a time."""
        self.now_s = now_s
        for index, (_, lanes, events) in enumerate(self._rows):
            while self._next[index][0] <= now_s:
                lanes.take(self._next[index][1])
                self._next[index] = next(events, (float("inf"), self._next[index][1]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the clock and both answers."""
        height = (options.height or console.height) - 4
        yield Text(f"{self.now_s * 1000:.0f} ms, shown {self._stretch:.0f} times slower", "dim")
        for recording, lanes, _ in self._rows:
            is_done = self.now_s >= recording.wall_s
            state = f"done after {recording.wall_s * 1000:.0f} ms" if is_done else "..."
            yield Text(f"\n{recording.name}  {state}", "bold")
            share = 1 / 3 if recording.name == "sequential" else 2 / 3
            yield from console.render(lanes, options.update(height=round(height * share)))


def animate(recordings: list[Recording]) -> None:
    """Play both recordings."""
    last_s = max(recording.wall_s for recording in recordings)
    stretch = SHOWN_S / last_s
    race = Race(recordings, stretch)
    with Live(race, console=console(sys.stderr), auto_refresh=False, transient=True) as live:
        began_s = time.monotonic()
        while race.now_s < last_s:
            race.go_to((time.monotonic() - began_s) / stretch)
            live.refresh()
            time.sleep(1 / 30)


def main() -> None:
    """Record both answers, play them, and print their times."""
    silence_libraries()
    import torch

    torch.set_num_threads(1)
    out = console(sys.stdout)
    task = example(FAMILY)
    out.print(KIND, style="bold")
    out.print(f"\n{task.prompt}\n", highlight=False)
    baseline, model = Pasta.from_pretrained("builtin-sequential"), Pasta.from_pretrained("builtin")
    recordings = [record("sequential", baseline, task.prompt), record("pasta", model, task.prompt)]
    if can_animate():
        animate(recordings)
    for recording in recordings:
        out.print(f"{recording.name}\n", style="bold")
        out.print(picture(recording.answer.trace, out.width, glyphs(out)))
        out.print(f"\n{recording.answer.text}\n", highlight=False)
        out.print(f"{summary(recording.answer.trace)}\n", highlight=False)
    one, many = recordings
    out.print(
        f"sequential {one.wall_s * 1000:.0f} ms, pasta {many.wall_s * 1000:.0f} ms: "
        f"{one.wall_s / many.wall_s:.2f}x, median of {NUM_RUNS} runs of one prompt",
        highlight=False,
    )


if __name__ == "__main__":
    main()
