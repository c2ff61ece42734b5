"""A trace as a still picture: a lane for each thread, steps from left to right, in pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pasta_lm.interpreter.trace import ThreadRecord, Trace

LANE_HEIGHT = 16
LABEL_WIDTH = 150
WIDTH = 640
"""Of the steps, beside the labels."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps in a row in which a thread was fed."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One thread."""

    label: str
    text: str
    """What it decoded, tags excluded."""
    y: int
    stretches: tuple[Stretch, ...]
    num_tokens: int
    promised_tokens: int | None


@dataclass(frozen=True, slots=True)
class Picture:
    """All threads of one response."""

    lanes: tuple[Lane, ...]
    syncs: tuple[float, ...]
    """Where main was fed a sync."""
    num_steps: int

    @property
    def height(self) -> int:
        """Return how high the picture is."""
        return LANE_HEIGHT * len(self.lanes)


def picture(trace: Trace) -> Picture:
    """Return where everything goes."""
    num_steps = max(trace.forward_passes, 1)
    scale = WIDTH / num_steps
    lanes = tuple(_lane(trace, lane, place, scale) for place, lane in enumerate(trace.threads))
    syncs = tuple(_round(sync.step * scale) for sync in trace.syncs if sync.step is not None)
    return Picture(lanes, syncs, num_steps)


def _lane(trace: Trace, lane: ThreadRecord, place: int, scale: float) -> Lane:
    tokens = trace.tokens_of(lane.id)
    fed = sorted({token.fed_step for token in tokens if token.fed_step is not None})
    return Lane(
        label="main" if lane.topic is None else f"{lane.id} {lane.topic}",
        text="".join(token.text for token in tokens if token.role.value == "content"),
        y=place * LANE_HEIGHT,
        stretches=tuple(
            Stretch(_round(first * scale), _round((last + 1 - first) * scale))
            for first, last in _runs(fed)
        ),
        num_tokens=lane.num_tokens,
        promised_tokens=lane.promised_tokens,
    )


def _runs(steps: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of numbers without a gap."""
    begin = 0
    for index, step in enumerate(steps):
        if index + 1 == len(steps) or steps[index + 1] != step + 1:
            yield steps[begin], step
            begin = index + 1


def _round(pixels: float) -> float:
    return round(pixels, 1)
