"""Length-controlled win rates, from stored judgements alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lm.cli.exit_codes import FAILED
from pasta_lm.cli.flags import Json, option
from pasta_lm.cli.tables import number, print_json, print_table

AllowMissing = Annotated[
    bool,
    option(
        "--allow-missing",
        help="Give win rates although verdicts are missing, also with the missing ones lost.",
    ),
]


def lc_winrate(
    annotations: Annotated[
        Path,
        option("--annotations", metavar="FILE.jsonl[.gz]", help="Stored judgements."),
    ],
    difficulty: Annotated[
        Path, option("--difficulty", metavar="CSV", help="Difficulty by instruction.")
    ],
    gamed: Annotated[
        Path, option("--gamed", metavar="CSV", help="Judgements of the gamed reference.")
    ],
    allow_missing: AllowMissing = False,
    as_json: Json = False,
) -> None:
    """Compute AlpacaEval's win rates from stored judgements.

    Nothing is asked of a judge. Where verdicts are missing, a model has no headline and the exit
    code is 1.
    """
    from pasta_lm.evaluate.judgements import named, read_difficulty, read_gamed, read_judgements
    from pasta_lm.evaluate.win_rates import Calibration, comparability, win_rate_figures
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
    if as_json:
        print_json(found)
    else:
        _print(found)
    for name, figures in found.items():
        if figures.get("n_absent"):
            typer.echo(f"pasta: {name}: {figures['n_absent']} instructions have no row", err=True)
        if "refused" in figures:
            hint = "--allow-missing gives both rates"
            typer.echo(f"pasta: {name}: {figures['refused']}; {hint}", err=True)
    if any("refused" in figures for figures in found.values()):
        raise typer.Exit(FAILED)


COLUMNS = (
    ("LC win rate", "length_controlled_winrate", 2),
    ("SE", "lc_standard_error", 2),
    ("win rate", "win_rate", 2),
    ("SE", "standard_error", 2),
    ("missing lost", "win_rate_missing_lost", 2),
    ("n", "n_total", 0),
    ("missing", "n_missing", 0),
    ("avg length", "avg_length", 0),
)


def _print(found: dict[str, dict[str, Any]]) -> None:
    """Print a line for each model, the best first."""
    order = sorted(found, key=lambda name: -(found[name].get("length_controlled_winrate") or 0))
    rows = [[name, *(number(found[name].get(key), n) for _, key, n in COLUMNS)] for name in order]
    print_table(["model", *(title for title, _, _ in COLUMNS)], rows)
    for label in dict.fromkeys(map(_label, found.values())):
        typer.echo(f"\n{label}")


def _label(figures: dict[str, Any]) -> str:
    return str(figures.get("pipeline_check") or figures["comparability"])
