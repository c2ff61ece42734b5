"""The paper's table and figures of speed, from records of answers or from traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lm.cli.flags import Json, option
from pasta_lm.cli.published_table import NoPublished, print_published

COLUMNS = (
    ("theoretical", "theoretical_speedup"),
    ("realised", "realised_speedup"),
    ("efficiency", "efficiency"),
    ("parallelism", "parallelism"),
    ("length ratio", "length_ratio"),
    ("theoretical, arithm.", "theoretical_speedup_arithmetic"),
    ("realised, arithm.", "realised_speedup_arithmetic"),
)


def speed(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE",
            help="Records of answers, the folder of an alpaca run, or a folder of traces: "
            "SYSTEM/PROMPT.json.",
        ),
    ],
    baseline: Annotated[
        str, option("--baseline", metavar="NAME", help="The system that is the yardstick.")
    ] = "sequential",
    win_rates: Annotated[
        list[Path] | None,
        option(
            "--win-rates",
            metavar="FILE.json",
            help="What lc-winrate --json printed, or an alpaca report: for Figure 4; may be given "
            "again.",
        ),
    ] = None,
    out: Annotated[
        Path | None, option("--out", metavar="DIR", help="Write the figures here, as SVG.")
    ] = None,
    no_published: NoPublished = False,
    json: Json = False,
) -> None:
    """Compute the paper's table and figures of speed.

    Nothing is decoded. Geometric means are the headline; figures have 95 % bootstrap intervals.
    What the paper reports stands below, and in Figure 4 as hollow squares: for orientation.
    """
    from json import dumps

    from pasta_lm.cli.terminal import write_text
    from pasta_lm.evaluate.paper_figures import paper_figures
    from pasta_lm.evaluate.published import published
    from pasta_lm.evaluate.speed_table import tables

    rates: dict[str, Any] = {}
    for file in win_rates or []:
        rates = _read_rates(file) | rates
    table = tables(sources, baseline)
    drawn = {}
    if out is not None:
        drawn = paper_figures(table, rates, with_published=not no_published)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, picture in drawn.items():
            write_text(out / f"{name}.svg", picture)
        if "figure-4" not in drawn:
            reason = "no system has both a win rate and a clock"
            typer.echo(f"pasta: no Figure 4: {reason}; see --win-rates", err=True)
    if json:
        found = {"baseline": baseline, "systems": table}
        more = {} if no_published else {"published": published()}
        typer.echo(dumps(found | more, ensure_ascii=False))
    else:
        _print(table, baseline)
        if not no_published:
            print_published(published(), typer.echo)


def _read_rates(path: Path) -> dict[str, Any]:
    """Return win rates by system; a report has them under ``systems``."""
    import json

    from pasta_lm.cli.terminal import read_text
    from pasta_lm.errors import InputError

    try:
        found = json.loads(read_text(str(path)))
    except ValueError as exc:
        raise InputError(f"{path} is not JSON: {exc}") from exc
    rates = found.get("systems", found) if isinstance(found, dict) else found
    if not isinstance(rates, dict) or not all(isinstance(one, dict) for one in rates.values()):
        raise InputError(f"{path}: no figures by system")
    return rates


def _print(table: dict[str, dict[str, Any]], baseline: str) -> None:
    width = max(len(name) for name in table) + 2
    cells = "".join(f"{title:>23}" for title, _ in COLUMNS)
    typer.echo(f"{'system':<{width}}{'n':>6}{'timed':>7}{cells}")
    for name, figures in table.items():
        cells = "".join(f"{_cell(figures[key]):>23}" for _, key in COLUMNS)
        counts = f"{figures['num_prompts']:>6}{figures['num_timed']:>7}"
        typer.echo(f"{name:<{width}}{counts}{cells}")
    kinds = sorted({kind for figures in table.values() for kind in figures["kinds"]})
    typer.echo(
        f"\n{', '.join(kinds)}; speedups against {baseline}'s answer to the same prompt; geometric "
        "means but where it says arithm.; 95 % bootstrap intervals over prompts"
    )


def _cell(figure: dict[str, float] | None) -> str:
    if figure is None:
        return "-"
    return f"{figure['mean']:.2f} [{figure['low']:.2f}, {figure['high']:.2f}]"
