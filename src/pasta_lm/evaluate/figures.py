"""The paper's figures as SVG: points with intervals, and bars side by side.

Plain text that a browser draws: no library, no script, and readable without colour, since every
point and bar has its name and its number beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 44, 56
SHADES = ("#1f4e79", "#c55a11", "#548235", "#7f6000")
CHARACTER, NUMBER = 7.5, 32
"""Room for a character of a name, and for the number over a bar."""
STYLE = "font-family:system-ui,sans-serif;font-size:12px;fill:#222"


class Span(NamedTuple):
    """A value with its interval."""

    mean: float
    low: float
    high: float


class Point(NamedTuple):
    """One system in a plane."""

    name: str
    x: Span
    y: Span


class Bars(NamedTuple):
    """One system's bars, in the order of the series."""

    name: str
    values: Sequence[Span | None]


class _Axis(NamedTuple):
    """Values to places on the paper."""

    low: float
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self) -> list[float]:
        return [self.low + n * (self.high - self.low) / 5 for n in range(6)]


def scatter(
    title: str,
    x_label: str,
    y_label: str,
    points: Sequence[Point],
    references: Sequence[Point] = (),
    label: str = "",
) -> str:
    """Draw systems in a plane, with the intervals of both figures as a cross.

    Args:
        title: Of the figure.
        x_label: Of the axis from left to right.
        y_label: Of the other.
        points: What was measured.
        references: Points of somebody else: hollow squares, without intervals.
        label: What is said of them.
    """
    shown = (*points, *references)
    across = _axis([v for p in shown for v in p.x], LEFT, WIDTH - RIGHT)
    up = _axis([v for p in shown for v in p.y], HEIGHT - BOTTOM, TOP)
    parts = [*_frame(title, x_label, y_label), *_ticks_across(across), *_ticks_up(up)]
    for point in points:
        x, y = across.place(point.x.mean), up.place(point.y.mean)
        for low, high, is_across in ((point.x.low, point.x.high, True), (*point.y[1:], False)):
            ends = [(across.place(v), y) if is_across else (x, up.place(v)) for v in (low, high)]
            parts.append(_line(*ends[0], *ends[1], "#888"))
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{SHADES[0]}"/>')
        said = f"{point.name} ({point.x.mean:.2f}, {point.y.mean:.1f})"
        parts.append(_beside(x, y, said))
    for point in references:
        x, y = across.place(point.x.mean), up.place(point.y.mean)
        parts.append(_hollow(x, y))
        parts.append(_beside(x, y, f"{point.name} ({point.x.mean:.2f}, {point.y.mean:.1f})"))
    if references:
        parts += [_hollow(LEFT + 4, 35), _text(LEFT + 14, 39, label, "start", size=10)]
    return _svg(title, parts)


def _hollow(x: float, y: float) -> str:
    return (
        f'<rect class="published" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" '
        'fill="#fff" stroke="#777"/>'
    )


def _beside(x: float, y: float, said: str) -> str:
    anchor = "end" if x > WIDTH * 0.7 else "start"
    return _text(x + (-8 if anchor == "end" else 8), y - 7, said, anchor)


def bars(title: str, y_label: str, series: Sequence[str], groups: Sequence[Bars]) -> str:
    """Draw the same figures of several systems side by side, from zero up.

    The figure is as wide as names and numbers need.
    """
    values = [value for group in groups for span in group.values if span for value in span]
    up = _axis([0.0, *values], HEIGHT - BOTTOM, TOP, from_zero=True)
    longest = max((len(group.name) for group in groups), default=0)
    needed = max(CHARACTER * (longest + 1), NUMBER * len(series) / 0.7)
    room = max(needed, (WIDTH - LEFT - RIGHT) / max(len(groups), 1))
    width = round(LEFT + RIGHT + room * max(len(groups), 1))
    parts = [*_frame(title, "", y_label, width), *_ticks_up(up)]
    wide = 0.7 * room / max(len(series), 1)
    for number, group in enumerate(groups):
        left = LEFT + number * room + 0.15 * room
        for place, span in enumerate(group.values):
            if span is not None:
                parts += _bar(left + place * wide, wide, span, up, SHADES[place % len(SHADES)])
        middle = LEFT + (number + 0.5) * room
        parts.append(_text(middle, HEIGHT - BOTTOM + 18, group.name, "middle"))
    for place, name in enumerate(series):
        x = LEFT + place * 180
        shade = SHADES[place % len(SHADES)]
        parts.append(f'<rect x="{x}" y="{HEIGHT - 22}" width="10" height="10" fill="{shade}"/>')
        parts.append(_text(x + 16, HEIGHT - 13, name, "start"))
    return _svg(title, parts, width)


def _bar(left: float, wide: float, span: Span, up: _Axis, shade: str) -> list[str]:
    top, foot, middle = up.place(span.mean), up.place(0), round(left + wide / 2, 1)
    tall = round(max(foot - top, 0), 1)
    return [
        f'<rect x="{left:.1f}" y="{top}" width="{wide * 0.92:.1f}" height="{tall}" '
        f'fill="{shade}"/>',
        _line(middle, up.place(span.low), middle, up.place(span.high), "#000"),
        _text(middle, up.place(span.high) - 4, f"{span.mean:.2f}", "middle"),
    ]


def _axis(values: Sequence[float], begin: float, end: float, *, from_zero: bool = False) -> _Axis:
    """Return an axis on which all values have room."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    return _Axis(0.0 if from_zero else low - margin, high + margin, begin, end)


def _frame(title: str, x_label: str, y_label: str, width: int = WIDTH) -> list[str]:
    middle = (LEFT + width - RIGHT) / 2
    return [
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 22, title, "start", weight="bold"),
        _text(middle, HEIGHT - 16, x_label, "middle"),
        f'<text x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})" '
        f'text-anchor="middle">{escape(y_label)}</text>',
        _line(LEFT, HEIGHT - BOTTOM, width - RIGHT, HEIGHT - BOTTOM, "#222"),
        _line(LEFT, TOP, LEFT, HEIGHT - BOTTOM, "#222"),
    ]


def _ticks_across(axis: _Axis) -> list[str]:
    foot = HEIGHT - BOTTOM + 16
    return [_text(axis.place(v), foot, f"{v:.2f}", "middle") for v in axis.ticks()]


def _ticks_up(axis: _Axis) -> list[str]:
    return [_text(LEFT - 6, axis.place(v) + 4, f"{v:.3g}", "end") for v in axis.ticks()]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"/>'


def _text(
    x: float, y: float, said: str, anchor: str, *, weight: str = "normal", size: int = 12
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    if size != 12:
        place += f' style="font-size:{size}px"'
    return f"<text {place}>{escape(said)}</text>"


def _svg(title: str, parts: Sequence[str], width: int = WIDTH) -> str:
    head = f'viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" style="{STYLE}"'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {head}>\n'
        f"<title>{escape(title)}</title>\n{body}\n</svg>\n"
    )
