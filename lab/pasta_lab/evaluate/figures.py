"""The plot of a comparison, as SVG: quality over speedup, points with the intervals of both axes.

The only file that imports matplotlib. It can be read without colour: methods differ by mark,
points have their name beside them. Title and description are in the file.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from pasta_lab.evaluate.points import Speed
from pasta_lm.errors import InputError

Figures = Mapping[str, Any]

MARKERS = ("o", "s", "^", "D", "X", "P", "v", "*", "<", ">")
COLOURS = ("#0b6e99", "#b5462a", "#3d7a2e", "#7a4ba0", "#8a6a00", "#555555")


class Span(NamedTuple):
    """The three numbers of an interval."""

    mean: float
    low: float
    high: float


class Place(NamedTuple):
    """One point of a plot, with the intervals of both axes."""

    name: str
    x: Span
    y: Span
    method: str = ""
    """Points of one method share a mark and are joined."""
    label: str = ""
    """Is written beside the mark."""


def scatter(
    title: str,
    axes: tuple[str, str],
    places: Sequence[Place],
    frontier: Sequence[Place] = (),
    baseline: float | None = None,
) -> str:
    """Draw points with the intervals of both axes, as SVG.

    Args:
        title: Of the figure.
        axes: The labels of both axes.
        places: What was measured.
        frontier: The points on the frontier, slowest first.
        baseline: The baseline's quality, a horizontal line.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    figure.suptitle(title, fontsize=11, fontweight="bold")
    ax = figure.add_subplot(xlabel=axes[0], ylabel=axes[1])
    ax.grid(color="#e8e8e8")
    methods = list(dict.fromkeys(place.method for place in places))
    for index, method in enumerate(methods):
        some = sorted((p for p in places if p.method == method), key=lambda p: p.x.mean)
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        for place in some:
            at = (place.x.mean, place.y.mean)
            x, y = ([[s.mean - s.low], [s.high - s.mean]] for s in (place.x, place.y))
            ax.errorbar(*at, xerr=x, yerr=y, color=colour, alpha=0.35)
            ax.annotate(place.label, at, (5, 5), textcoords="offset points", fontsize=8)
        xs, ys = [place.x.mean for place in some], [place.y.mean for place in some]
        (line,) = ax.plot(xs, ys, marker=marker, color=colour, label=method or None)
        line.set(linestyle="-" if method else "", linewidth=1, gid=f"points-{index}")
    if frontier:
        xs, ys = [place.x.mean for place in frontier], [place.y.mean for place in frontier]
        ax.step(xs, ys, where="pre", color="#999999", alpha=0.35, linewidth=5, gid="frontier")
    if baseline is not None:
        ax.axhline(baseline, color="#444444", linestyle=":", linewidth=1)
        ax.axvline(1.0, color="#444444", linestyle=":", linewidth=1)
    if any(methods):
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return _svg(figure, title, [f"{p.name} ({p.x.mean:.2f}, {p.y.mean:.2f})" for p in places])


def frontier_plot(report: Figures) -> str:
    """Draw the report of a comparison: over realised speedup if a point was timed.

    Raises:
        InputError: no point was run.
    """
    for kind in (Speed.REALISED, Speed.THEORETICAL):
        key = f"{kind.value}_speedup"
        shown = [point for point in report["points"] if point[key]]
        if shown:
            break
    else:
        raise InputError("nothing to draw: no point was run")
    places = {point["name"]: point_place(point, key) for point in shown}
    first, kinds = shown[0], ", ".join(report["kinds"])
    on_it = [places[point["name"]] for point in shown if point["on_frontier"][kind.value]]
    return scatter(
        f"Quality against {kind.value} speedup ({kinds})",
        (f"{kind.value} speedup over the baseline, geometric mean", "quality (mean grade)"),
        list(places.values()),
        frontier=sorted(on_it, key=lambda place: place.x.mean),
        baseline=first["quality"]["mean"] - first["quality_difference"]["mean"],
    )


def point_place(point: Figures, key: str) -> Place:
    """Return a point's place; quality has the interval of its difference to the baseline."""
    mean, difference = point["quality"]["mean"], Span(**point["quality_difference"])
    quality = Span(*(mean + end - difference.mean for end in difference))
    is_flagged = point["is_length_unusual"]
    name = point["name"] + (": its length is unusual" if is_flagged else "")
    label = point["label"] + (" !" if is_flagged else "")
    return Place(name, Span(**point[key]), quality, point["method"], label)


def _svg(figure: Figure, title: str, told: Sequence[str]) -> str:
    """Return the file, with title and description for readers who do not see it."""
    written = io.StringIO()
    # Text stays text, so that it can be searched and read aloud; a fixed salt for fixed ids.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "pasta"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    head, tag, body = written.getvalue().partition("<svg ")
    attributes, end, rest = body.partition(">")
    about = f"\n<title>{escape(title)}</title>\n<desc>{escape('; '.join(told))}</desc>"
    return f'{tag}role="img" {attributes}{end}{about}{rest}'
