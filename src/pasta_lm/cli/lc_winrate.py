"""Length-controlled win rates, from stored judgements alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lm.cli.flags import Json, option

AllowMissing = Annotated[
    bool,
    option(
        "--allow-missing",
        help="Give a headline although verdicts are missing, and beside it one with them lost.",
    ),
]


def lc_winrate(
    annotations: Annotated[
        Path,
        option("--annotations", metavar="FILE.jsonl[.gz]", help="Judgements: a line each."),
    ],
    difficulty: Annotated[Path, option("--difficulty", metavar="CSV", help="Of each instruction.")],
    gamed: Annotated[
        Path, option("--gamed", metavar="CSV", help="Verdicts on the gamed reference.")
    ],
    allow_missing: AllowMissing = False,
    json: Json = False,
) -> None:
    """Compute AlpacaEval's win rates from stored judgements.

    Nothing is asked of a judge. Where verdicts are missing, a model has no headline and the exit
    code is 1.
    """
    from json import dumps

    from pasta_lm.evaluate.comparability import comparability
    from pasta_lm.evaluate.judgements import named, read_difficulty, read_gamed, read_judgements
    from pasta_lm.evaluate.win_rates import Calibration, win_rate_figures
    from pasta_lm.judging.llm_judge import SCRIPTED

    models = read_judgements(annotations)
    calibration = Calibration(read_difficulty(difficulty), read_gamed(gamed))
    found: dict[str, dict[str, Any]] = {}
    for name, rows in models.items():
        judge, baseline = named(rows)
        if judge and judge.startswith(SCRIPTED):
            found[name] = {"pipeline_check": f"pipeline check, n = {len(rows)}", "judge": judge}
            continue
        figures = win_rate_figures(rows, calibration, allow_missing=allow_missing)
        verdict = comparability(judge, baseline, figures["n_total"])
        found[name] = figures | {
            "judge": judge,
            "baseline": baseline,
            "is_comparable": verdict.is_comparable,
            "comparability": verdict.label,
        }
    if json:
        typer.echo(dumps(found, ensure_ascii=False))
    else:
        _print(found)
    for name, figures in found.items():
        if figures.get("n_absent"):
            typer.echo(f"pasta: {name}: {figures['n_absent']} instructions have no row", err=True)
        if "refused" in figures:
            hint = "--allow-missing gives both rates"
            typer.echo(f"pasta: {name}: {figures['refused']}; {hint}", err=True)
    if any("refused" in figures for figures in found.values()):
        raise typer.Exit(1)


COLUMNS = (
    ("LC win rate", "length_controlled_winrate", ".2f"),
    ("SE", "lc_standard_error", ".2f"),
    ("win rate", "win_rate", ".2f"),
    ("SE", "standard_error", ".2f"),
    ("missing lost", "win_rate_missing_lost", ".2f"),
    ("n", "n_total", "d"),
    ("missing", "n_missing", "d"),
    ("avg length", "avg_length", "d"),
)


def _print(found: dict[str, dict[str, Any]]) -> None:
    """Print a line for each model, the best first."""
    width = max(len(name) for name in found) + 2
    typer.echo(f"{'model':<{width}}" + "".join(f"{title:>14}" for title, _, _ in COLUMNS))
    order = sorted(found, key=lambda name: -(found[name].get("length_controlled_winrate") or 0))
    for name in order:
        cells = [_cell(found[name].get(key), form) for _, key, form in COLUMNS]
        typer.echo(f"{name:<{width}}" + "".join(f"{cell:>14}" for cell in cells))
    for label in dict.fromkeys(map(_label, found.values())):
        typer.echo(f"\n{label}")


def _label(figures: dict[str, Any]) -> str:
    return str(figures.get("pipeline_check") or figures["comparability"])


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
