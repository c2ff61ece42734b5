"""Print a comparison of many points as tables: figures, verdicts, and what was not run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pasta_lm.cli.published_table import print_published
from pasta_lm.cli.terminal import console

Figures = Mapping[str, Any]


def print_frontier(found: Figures) -> None:
    """Print what ``frontier.report`` returned."""
    out = partial(console(sys.stdout).print, soft_wrap=True)  # a row is a line, however wide
    points, missing = found["points"], found["not_run"]
    named = (*points, *missing, *found["step_costs"], *found["replays"])
    width = max(30, *(len(one["name"]) + 2 for one in named))
    columns = ("quality", "theoretical", "realised", "length")
    out(f"{'':<{width}}" + "".join(f"{column:>24}" for column in columns) + "  frontier")
    for point in points:
        out(_row(point, width))
    for point in missing:
        out(f"{point['name']:<{width}}not run: {point['command']}")
    for line in _yardsticks(found, width):
        out(line)
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
    if "published" in found:
        print_published(found["published"], out)


def _yardsticks(found: Figures, width: int) -> Iterator[str]:
    """Yield what speeds are held against besides the baseline, and what of it was not run."""
    for one in (*found["step_costs"], *found["replays"]):
        if one["found"] is None:
            yield f"{one['name']:<{width}}not run: {one['command']}"
    if found["fastest_sequential"]:
        yield f"\nrealised, against the fastest sequential way: {found['fastest_sequential']}"
    for point in found["points"]:
        if ratio := point["over_fastest_sequential"]:
            yield f"{point['name']:<{width}}{_cell(ratio):>24}"
    shares = {point["name"]: point["of_perfect_forks"] for point in found["points"]}
    if any(shares.values()):
        yield f"\n{'speed / that of perfect forks':<{width}}{'theoretical':>24}{'realised':>24}"
    for name, share in shares.items():
        if share:
            cells = f"{_cell(share['theoretical']):>24}{_cell(share['realised']):>24}"
            yield f"{name:<{width}}{cells}"


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
