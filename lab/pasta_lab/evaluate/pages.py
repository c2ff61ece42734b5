"""The tables of a comparison, and the paper's own figures as labelled reference points."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pasta_lab.cli.figures import interval
from pasta_lab.tasks.registry import training_families
from pasta_lm.measure.table import Table

Figures = Mapping[str, Any]


def tables(report: Figures) -> list[Table]:
    """Return the points, the verdicts and the paper's figures of a report."""
    header = ("", "quality", "theoretical", "realised", "length", "frontier")
    rows = [_point(point) for point in report["points"]]
    rows += [
        (point["name"], f"not run: {point['command']}", *[""] * 4) for point in report["not_run"]
    ]
    made = [Table(header, rows, "Points")]
    if report["comparisons"]:
        columns = (f"{report['ours']} against", "speed", "grade", "speedup", "verdict", "by")
        made.append(Table(columns, [_verdict(row) for row in report["comparisons"]], "Verdicts"))
    if "published" in report:
        keys = ("win_rate", "theoretical_speedup", "realised_speedup", "efficiency")
        points = [
            (row["name"], *(row[key] for key in keys)) for row in report["published"]["points"]
        ]
        paper = ("", "win rate, %", "theoretical", "realised", "efficiency")
        made.append(Table(paper, points, report["published"]["label"], digits=2))
    return made


def frontier_page(report: Figures) -> str:
    """Return the report of a comparison as Markdown, with a table of every family."""
    decisions = ("fork_precision", "fork_recall", "sync_precision", "sync_recall")
    rows = [(row["name"], *(interval(row[key]) for key in decisions)) for row in report["points"]]
    header = ("", *(key.replace("_", " ") for key in decisions))
    families = [
        (f"{family}, {point['name']}", *_figures(point["families"][family]))
        for family in training_families()
        for point in report["points"]
    ]
    by_family = Table(("", "quality", "theoretical", "realised"), families, "Families")
    more = [Table(header, rows, "Forks and syncs"), by_family]
    parts = [f"# {report['title']}", facts(report)]
    for table in (*tables(report), *more):
        lines = [table.header, ["---"] * len(table.header), *table.texts()]
        parts += [f"## {table.title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


def facts(report: Figures) -> str:
    """Return the conditions of a comparison."""
    kinds = ", ".join(report["kinds"]) or "nothing was run"
    return (
        f"{kinds}: {report['num_prompts']} prompts of split {report['split']}, against the "
        f"sequential answers of {report['baseline']}, paired by prompt; 95 % bootstrap intervals; "
        "speedups are geometric means; !: length outside 0.95 to 1.05 of the baseline's"
    )


def _figures(figures: Figures) -> list[str]:
    keys = ("quality", "theoretical_speedup", "realised_speedup")
    return [interval(figures[key]) for key in keys]


def _point(point: Figures) -> tuple[str, ...]:
    on_it = ", ".join(speed for speed, is_on in point["on_frontier"].items() if is_on)
    length = ("! " if point["is_length_unusual"] else "") + interval(point["length_ratio"])
    return point["name"], *_figures(point), length, on_it or "-"


def _verdict(row: Figures) -> tuple[str, ...]:
    figures = [interval(row[key]) for key in ("quality_difference", "speed_ratio")]
    return row["rival"], row["speed"], *figures, row["verdict"], row["by"]


LABEL = (
    "published, Gemma 7B, AlpacaEval, not comparable with ours unless judge, baseline and prompts "
    "are the same"
)


def published() -> dict[str, Any]:
    """Return the paper's figures as a report has them, each with its source."""
    file = Path(__file__).with_name("published.toml")
    points = tomllib.loads(file.read_text("utf-8"))["points"]
    return {
        "label": LABEL,
        "num_prompts": 805,
        "points": [{"efficiency": None, **point} for point in points],
    }
