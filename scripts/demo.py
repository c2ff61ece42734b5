"""Show the built-in model and its sequential baseline answering a question, on one clock.

The question is an argument; without one it is a question whose parts are independent.

Both write their own text. Each is decoded alone, so that neither slows the other, and every event
is recorded with its time. Then the terminal plays both at the speed at which they were decoded.
"""

from __future__ import annotations

import argparse
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
from pasta_lm.models.shipped import BUILTIN, SEQUENTIAL_BASELINE

QUESTION = "Give me five tips for preparing for a job interview."
MAX_TOKENS = 300
KIND = "generated: SmolLM2-135M-Instruct taught by this project, its own text, greedy"


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

    @property
    def num_tokens(self) -> int:
        """Return the tokens of the answer's text."""
        return self.answer.trace.num_content_tokens

    @property
    def rate(self) -> float:
        """Return the tokens of the text for each second."""
        return self.num_tokens / self.wall_s


def record(name: str, model: Pasta, prompt: str) -> Recording:
    """Decode a prompt and return the run, after a few tokens that warm up."""
    model.generate(prompt, SamplingParams(max_tokens=8), strategy=name)
    began_s = time.perf_counter()
    events = []
    for event in model.stream(prompt, SamplingParams(max_tokens=MAX_TOKENS), strategy=name):
        events.append((time.perf_counter() - began_s, event))
    finished = events[-1][1]
    assert isinstance(finished, Finished)
    return Recording(name, finished.answer, events)


class Race:
    """Both answers at one moment of the clock."""

    def __init__(self, recordings: list[Recording]) -> None:
        """Start the clock at zero."""
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
        yield Text(f"{self.now_s:.1f} s", "dim")
        for recording, lanes, _ in self._rows:
            is_done = self.now_s >= recording.wall_s
            state = f"done after {recording.wall_s:.1f} s" if is_done else "..."
            yield Text(f"\n{recording.name}  {state}", "bold")
            share = 1 / 3 if recording.name == "sequential" else 2 / 3
            yield from console.render(lanes, options.update(height=round(height * share)))


def animate(recordings: list[Recording]) -> None:
    """Play both recordings on one clock."""
    last_s = max(recording.wall_s for recording in recordings)
    race = Race(recordings)
    with Live(race, console=console(sys.stderr), auto_refresh=False, transient=True) as live:
        began_s = time.monotonic()
        while race.now_s < last_s:
            race.go_to(time.monotonic() - began_s)
            live.refresh()
            time.sleep(1 / 30)


def main() -> None:
    """Record both answers, play them, and print their times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default=QUESTION)
    question = parser.parse_args().question
    silence_libraries()
    import torch

    torch.set_num_threads(1)
    out = console(sys.stdout)
    out.print(KIND, style="bold")
    out.print(f"\n{question}\n", highlight=False)
    baseline, model = Pasta.from_pretrained(SEQUENTIAL_BASELINE), Pasta.from_pretrained(BUILTIN)
    recordings = []
    for name, one in (("sequential", baseline), ("pasta", model)):
        with console(sys.stderr).status(f"decoding {name}"):
            recordings.append(record(name, one, question))
    if can_animate():
        animate(recordings)
    for recording in recordings:
        out.print(f"{recording.name}\n", style="bold")
        out.print(picture(recording.answer.trace, out.width, glyphs(out)))
        out.print(f"\n{recording.answer.text}\n", highlight=False)
        out.print(f"{summary(recording.answer.trace)}\n", highlight=False)
    one, many = recordings
    out.print(
        f"sequential {one.num_tokens} tokens in {one.wall_s:.1f} s, "
        f"pasta {many.num_tokens} in {many.wall_s:.1f} s: {one.wall_s / many.wall_s:.2f} times as "
        f"fast, {many.rate / one.rate:.2f} times the tokens a second, one run each",
        highlight=False,
    )


if __name__ == "__main__":
    main()
