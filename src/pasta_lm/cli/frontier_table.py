"""Print a comparison of many points as tables: figures, verdicts, and what was not run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from pasta_lm.cli.terminal import console

Figures = Mapping[str, Any]


def print_frontier(found: Figures) -> None:
    """Print what ``frontier.report`` returned."""
    out = partial(console(sys.stdout).print, soft_wrap=True)  # a row is a line, however wide
    points, missing = found["points"], found["not_run"]
    width = max(len(point["name"]) for point in (*points, *missing)) + 2
    columns = ("quality", "theoretical", "realised", "length")
    out(f"{'':<{width}}" + "".join(f"{column:>24}" for column in columns) + "  frontier")
    for point in points:
        out(_row(point, width))
    for point in missing:
        out(f"{point['name']:<{width}}not run: {point['command']}")
    if found["comparisons"]:
        out(f"\n{found['ours']} against the others, paired by prompt")
    for row in found["comparisons"]:
        cells = f"{_cell(row['quality_difference']):>24}{_cell(row['speed_ratio']):>24}"
        said = row["verdict"] + (f": {row['by']}" if row["verdict"] == "better" else "")
        out(f"{row['rival']:<{width}}{row['speed']:<12}{cells}  {said}")
    kinds = ", ".join(found["kinds"]) or "nothing was run"
    out(
        f"\n{kinds}: {found['num_prompts']} prompts of split {found['split']}, against the "
        f"sequential answers of {found['baseline']}; 95 % bootstrap intervals; speedups are "
        "geometric means; !: length outside 0.95 to 1.05 of the baseline's"
    )


def _row(point: Figures, width: int) -> str:
    cells = [
        _cell(point["quality"]),
        _cell(point["theoretical_speedup"]),
        _cell(point["realised_speedup"]),
        ("! " if point["is_length_unusual"] else "") + _cell(point["length_ratio"]),
    ]
    where = ", ".join(speed for speed, is_on in point["on_frontier"].items() if is_on) or "-"
    return f"{point['name']:<{width}}" + "".join(f"{cell:>24}" for cell in cells) + f"  {where}"


def _cell(figure: Figures | None) -> str:
    if figure is None:
        return "-"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"
