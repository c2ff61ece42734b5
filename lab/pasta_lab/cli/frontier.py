"""The tables of a comparison, and the verb that draws a table of speed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lm.cli.flags import option
from pasta_lm.cli.terminal import print_table, read_text, write_text
from pasta_lm.errors import InputError

Figures = Mapping[str, Any]

NoPublished = Annotated[
    bool, option("--no-published", "Leave out the figures that the paper reports.")
]


def print_frontier(found: Figures) -> None:
    """Print the tables of a comparison."""
    from pasta_lab.evaluate.pages import facts, tables

    for table in tables(found):
        typer.echo(f"{table.title}\n")
        print_table(table.header, table.texts(), text_columns=(0, 1))
        typer.echo()
    typer.echo(facts(found))


def figures(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SOURCE", help="The sources of `pasta evaluate speed`.")
    ],
    out: Annotated[Path, option("--out DIR", "Write the figures here, as SVG.")],
    baseline: Annotated[
        str, option("--baseline NAME", "The system that others are compared with.")
    ] = "sequential",
    win_rates: Annotated[
        list[Path] | None,
        option(
            "--win-rates FILE.json",
            "Output of lc-winrate --json, or an alpaca report: for Figure 4; may be repeated.",
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
