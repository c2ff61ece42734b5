"""Draw quality against speed in the layout of the paper's Figure 4: where every mark and line goes.

Right is faster, up is better. A method has a mark of its own, so that the figure can be read
without colour; its points are joined in the order of their speed. Lengths are in pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

Figures = Mapping[str, Any]

WIDTH, HEIGHT = 720, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 24, 52
NUM_STEPS = 5
"""About so many numbers stand at an axis."""
COLOURS = ("#0b6e99", "#b5462a", "#3d7a2e", "#7a4ba0", "#8a6a00", "#555555")
MARKS = (
    *("circle", "square", "triangle", "diamond", "cross"),
    *("ring", "wedge", "plus", "frame", "bar"),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: from values to pixels, and where numbers stand."""

    low: float
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        """Return where a value lies, in pixels."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)

    def steps(self) -> list[tuple[float, str]]:
        """Return the numbers that stand at the axis: where, and how they are written."""
        width = _round_width((self.high - self.low) / NUM_STEPS)
        digits = max(0, -floor(log10(width)))
        first, last = ceil(self.low / width - 1e-9), floor(self.high / width + 1e-9)
        return [(self.place(i * width), f"{i * width:.{digits}f}") for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Mark:
    """One point with its 95 % intervals; quality has that of the difference to the baseline."""

    name: str
    label: str
    x: float
    y: float
    left: float
    right: float
    bottom: float
    top: float
    on_frontier: bool
    is_flagged: bool
    """Its length is outside the usual."""


@dataclass(frozen=True, slots=True)
class Line:
    """The points of one method."""

    method: str
    colour: str
    shape: str
    marks: tuple[Mark, ...]

    @property
    def path(self) -> str:
        """Return the points as SVG wants them."""
        return " ".join(f"{mark.x},{mark.y}" for mark in self.marks)


@dataclass(frozen=True, slots=True)
class Bound:
    """How fast a structure that no model chose is: a speed, and no quality."""

    name: str
    x: float


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure, ready to be written as SVG."""

    speed: str
    kinds: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    frontier: str
    """The frontier as a line of steps."""
    baseline: float | None
    """The height of the baseline's quality."""
    bounds: tuple[Bound, ...] = ()


def plot(found: Figures, speed: str) -> Plot | None:
    """Return a figure of a report; None where no point has this speed.

    Args:
        found: What ``frontier.report`` returns.
        speed: ``theoretical`` or ``realised``.
    """
    fast = [point for point in found["points"] if point[f"{speed}_speedup"]]
    points = [point for point in fast if not point["is_bound"]]
    bounds = {p["name"]: p[f"{speed}_speedup"]["mean"] for p in fast if p["is_bound"]}
    if not points:
        return None
    speeds = [point[f"{speed}_speedup"] for point in points]
    base = points[0]["quality"]["mean"] - points[0]["quality_difference"]["mean"]
    grades = {point["name"]: _paired(point) for point in points}
    x = _axis([1.0, *bounds.values(), *_bounds(speeds)], LEFT, WIDTH - RIGHT)
    y = _axis([base, *_bounds(grades.values())], HEIGHT - BOTTOM, TOP)
    marks = {point["name"]: _mark(point, speed, grades[point["name"]], x, y) for point in points}
    methods = list(dict.fromkeys(point["method"] for point in points))
    lines = tuple(
        Line(
            method,
            COLOURS[index % len(COLOURS)],
            MARKS[index % len(MARKS)],
            _in_order([marks[one["name"]] for one in points if one["method"] == method]),
        )
        for index, method in enumerate(methods)
    )
    steps = _steps(_in_order([mark for mark in marks.values() if mark.on_frontier]))
    limits = tuple(Bound(name, x.place(mean)) for name, mean in bounds.items())
    return Plot(speed, ", ".join(found["kinds"]), x, y, lines, steps, y.place(base), limits)


def _paired(point: Figures) -> Figures:
    """Return a point's quality with the interval of what it has beside the baseline."""
    mean, beside = point["quality"]["mean"], point["quality_difference"]
    return {end: mean + beside[end] - beside["mean"] for end in ("low", "mean", "high")}


def _mark(point: Figures, speed: str, good: Figures, x: Axis, y: Axis) -> Mark:
    fast = point[f"{speed}_speedup"]
    return Mark(
        name=point["name"],
        label=point["label"],
        x=x.place(fast["mean"]),
        y=y.place(good["mean"]),
        left=x.place(fast["low"]),
        right=x.place(fast["high"]),
        bottom=y.place(good["low"]),
        top=y.place(good["high"]),
        on_frontier=point["on_frontier"][speed],
        is_flagged=point["is_length_unusual"],
    )


def _in_order(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    return tuple(sorted(marks, key=lambda mark: (mark.x, mark.y)))


def _steps(marks: Sequence[Mark]) -> str:
    """Return the border of what is beaten: as good as the next point, up to its speed."""
    corners = [f"{mark.x},{mark.y}" for mark in marks[:1]]
    for mark, following in zip(marks, marks[1:], strict=False):
        corners += [f"{mark.x},{following.y}", f"{following.x},{following.y}"]
    return " ".join(corners)


def _bounds(figures: Iterable[Figures]) -> list[float]:
    return [figure[end] for figure in figures for end in ("low", "mean", "high")]


def _axis(values: Sequence[float], begin: float, end: float) -> Axis:
    low, high = min(values), max(values)
    margin = 0.08 * (high - low) or 0.05
    return Axis(low - margin, high + margin, begin, end)


def _round_width(width: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least as large."""
    power: float = 10.0 ** floor(log10(width))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= width * (1 - 1e-9))
