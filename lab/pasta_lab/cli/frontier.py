"""The tables of a comparison, and the verb that draws a table of speed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lab.cli.figures import interval
from pasta_lm.cli.flags import option
from pasta_lm.cli.tables import number, print_table
from pasta_lm.cli.terminal import read_text, write_text
from pasta_lm.errors import InputError

Figures = Mapping[str, Any]

NoPublished = Annotated[
    bool, option("--no-published", help="Leave out the figures that the paper reports.")
]


def print_frontier(found: Figures) -> None:
    """Print what ``frontier.report`` returned."""
    not_run = [[point["name"], f"not run: {point['command']}"] for point in found["not_run"]]
    header = ["", "quality", "theoretical", "realised", "length", "frontier"]
    print_table(header, [*map(_row, found["points"]), *not_run])
    _print_reference_points(found)
    if found["comparisons"]:
        typer.echo()
        header = [f"{found['ours']} against", "speed", "grade", "speedup", "verdict"]
        print_table(header, [_verdict(row) for row in found["comparisons"]], text_columns=(0, 1, 4))
    kinds = ", ".join(found["kinds"]) or "nothing was run"
    typer.echo(
        f"\n{kinds}: {found['num_prompts']} prompts of split {found['split']}, against the "
        f"sequential answers of {found['baseline']}, paired by prompt; 95 % bootstrap intervals; "
        "speedups are geometric means; !: length outside 0.95 to 1.05 of the baseline's"
    )
    if "published" in found:
        print_published(found["published"])


def _row(point: Figures) -> list[str]:
    on_it = [speed for speed, is_on in point["on_frontier"].items() if is_on]
    figures = [interval(point[key]) for key in ("quality", "theoretical_speedup")]
    length = ("! " if point["is_length_unusual"] else "") + interval(point["length_ratio"])
    realised = interval(point["realised_speedup"])
    return [point["name"], *figures, realised, length, ", ".join(on_it) or "-"]


def _verdict(row: Figures) -> list[str]:
    said = row["verdict"] + (f": {row['by']}" if row["verdict"] == "better" else "")
    figures = [interval(row[key]) for key in ("quality_difference", "speed_ratio")]
    return [row["rival"], row["speed"], *figures, said]


def _print_reference_points(found: Figures) -> None:
    """Print the speed over the fastest sequential decoding, and of perfect forks."""
    rows = [(p["name"], p["over_fastest_sequential"]) for p in found["points"]]
    if found["fastest_sequential"]:
        typer.echo()
        header = ["realised, over the fastest sequential decoding", found["fastest_sequential"]]
        print_table(header, [[name, interval(ratio)] for name, ratio in rows if ratio])
    shares = [(p["name"], p["of_perfect_forks"]) for p in found["points"] if p["of_perfect_forks"]]
    if shares:
        typer.echo()
        kinds = ("theoretical", "realised")
        cells = [[name, *(interval(share[kind]) for kind in kinds)] for name, share in shares]
        print_table(["speed / that of perfect forks", *kinds], cells)


def print_published(found: Figures) -> None:
    """Print the figures that the paper reports, under their label."""
    typer.echo(f"\n{found['label']}")
    print_table(
        ["", "win rate, %", "theoretical", "realised", "efficiency"],
        [
            [
                one["name"],
                number(one["win_rate"], 1),
                *(
                    number(one[k])
                    for k in ("theoretical_speedup", "realised_speedup", "efficiency")
                ),
            ]
            for one in found["points"]
        ],
    )


def figures(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE", help="The sources of `pasta evaluate speed`.")
    ],
    out: Annotated[Path, option("--out", metavar="DIR", help="Write the figures here, as SVG.")],
    baseline: Annotated[
        str, option("--baseline", metavar="NAME", help="The system that others are compared with.")
    ] = "sequential",
    win_rates: Annotated[
        list[Path] | None,
        option(
            "--win-rates",
            metavar="FILE.json",
            help="Output of lc-winrate --json, or an alpaca report: for Figure 4; may be repeated.",
        ),
    ] = None,
    no_published: NoPublished = False,
) -> None:
    """Draw the figures of a table of speed.

    The paper's figures stand in Figure 4 as hollow squares: for orientation.
    """
    from pasta_lab.evaluate.figures import speed_figures
    from pasta_lm.measure.speed import speed_report

    rates: dict[str, Any] = {}
    for file in win_rates or []:
        rates = _read_rates(file) | rates
    table = speed_report(sources, baseline).to_dict()["systems"]
    drawn = speed_figures(table, rates, with_published=not no_published)
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in drawn.items():
        write_text(out / f"{name}.svg", picture)
    if "figure-4" not in drawn:
        reason = "no system has both a win rate and a clock"
        typer.echo(f"pasta: no Figure 4: {reason}; see --win-rates", err=True)


def _read_rates(path: Path) -> dict[str, Any]:
    """Return win rates by system; a report has them under ``systems``."""
    try:
        found = json.loads(read_text(str(path)))
    except ValueError as exc:
        raise InputError(f"{path} is not JSON: {exc}") from exc
    rates = found.get("systems", found) if isinstance(found, dict) else found
    if not isinstance(rates, dict) or not all(isinstance(one, dict) for one in rates.values()):
        raise InputError(f"{path}: no figures by system")
    return rates
