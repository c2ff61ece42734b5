"""Which figures are drawn of a table: win rate over speedup, both speedups, both means, lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pasta_lm.evaluate.figures import Bars, Point, Span, bars, scatter

Figures = Mapping[str, Any]
Z95 = 1.959964
"""Half the width of a 95 % interval, in standard errors."""
SERIES = {
    "theoretical-realised": (
        "Theoretical beside realised speedup, geometric means",
        "speedup",
        {"theoretical_speedup": "theoretical", "realised_speedup": "realised"},
    ),
    "arithmetic-means": (
        "Realised speedup: geometric beside arithmetic mean",
        "speedup",
        {"realised_speedup": "geometric", "realised_speedup_arithmetic": "arithmetic"},
    ),
    "lengths": (
        "Length of answers against the baseline's, in characters",
        "length ratio, geometric mean",
        {"length_ratio": "length ratio"},
    ),
}


def paper_figures(
    table: Mapping[str, Figures], win_rates: Mapping[str, Figures] | None
) -> dict[str, str]:
    """Return SVG by name; what there is nothing to draw of is left out.

    Args:
        table: Of ``speed_table``.
        win_rates: By system: ``length_controlled_winrate`` and ``lc_standard_error``, or the plain
            ones; None: nobody judged.

    Source: PASTA, Figure 4 and the appendix.
    """
    drawn: dict[str, str] = {}
    points = _points(table, win_rates or {})
    if points:
        title = "Win rate over realised speedup (the paper's Figure 4)"
        label = "realised speedup, geometric mean"
        drawn["figure-4"] = scatter(title, label, "win rate, %", points)
    for name, (title, label, series) in SERIES.items():
        groups = [
            Bars(system, [span(figures.get(key)) for key in series])
            for system, figures in table.items()
        ]
        if any(value for group in groups for value in group.values):
            drawn[name] = bars(title, label, [*series.values()], groups)
    return drawn


def span(figure: Mapping[str, float] | None) -> Span | None:
    """Return a figure of a table for drawing."""
    return Span(figure["mean"], figure["low"], figure["high"]) if figure else None


def win_rate_span(figures: Figures) -> Span | None:
    """Return a win rate with its interval, length-controlled if there is one."""
    for rate, error in (
        ("length_controlled_winrate", "lc_standard_error"),
        ("win_rate", "standard_error"),
    ):
        if figures.get(rate) is not None:
            half = Z95 * (figures.get(error) or 0.0)
            return Span(figures[rate], figures[rate] - half, figures[rate] + half)
    return None


def _points(table: Mapping[str, Figures], win_rates: Mapping[str, Figures]) -> list[Point]:
    points = []
    for system, figures in table.items():
        speedup, rate = span(figures["realised_speedup"]), win_rates.get(system)
        height = win_rate_span(rate) if rate else None
        if speedup and height:
            points.append(Point(system, speedup, height))
    return points
