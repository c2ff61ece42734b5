"""``pasta-lab judge``: measure a judge's accuracy on pairs with known winners."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from pasta_lab.cli.figures import interval
from pasta_lm.cli.flags import Json, Out, Recipe, Set, option
from pasta_lm.cli.terminal import (
    FAILED,
    bars,
    interruptible,
    print_json,
    print_table,
    say,
    silence_libraries,
)

app = typer.Typer(no_args_is_help=True, help="Check a judge before it is used.")

COLUMNS = (
    ("right", "accuracy"),
    ("in one order", "in_one_order"),
    ("orders agree", "order_agreement"),
    ("first place", "first_place_share"),
)


@app.callback()
def judge() -> None:
    """Check a judge before it is used."""


@app.command()
def check(
    out: Out,
    recipe: Recipe = None,
    answers: Annotated[
        list[str] | None,
        option(
            "--answers FILE",
            "Answers to damage: annotated data, or AlpacaEval's form; may be repeated.",
        ),
    ] = None,
    require: Annotated[
        bool, option("--require", "Exit with code 1 if the judge is refused for headlines.")
    ] = False,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Measure a judge's accuracy on pairs with known winners.

    One part of each answer is dropped, doubled, swapped or cut; the judge compares both answers in
    both orders. A judge that is right on less than 0.9 is refused for headlines. Replies are kept
    in the folder; a stopped run is continued.
    """
    from pasta_lab.judge.check import JudgeCheckRecipe, run_check
    from pasta_lm.recipe import read_recipe

    flags = [f"damage.answers={json.dumps(answers)}"] if answers else []
    settings = read_recipe(recipe, JudgeCheckRecipe, [*flags, *(changes or [])])
    silence_libraries()
    with interruptible(), bars() as show:
        report = run_check(settings, out, show)
    (print_json if as_json else _print)(report)
    for reason in report["refused"]:
        say(f"refused for headlines: {reason}")
    if require and report["refused"]:
        raise typer.Exit(FAILED)


def _print(report: Mapping[str, Any]) -> None:
    damage = report["damage"]
    kinds = {**damage["kinds"], "all": damage["overall"]}
    rows = [
        [kind, str(figures["num_pairs"]), *(interval(figures[key]) for _, key in COLUMNS)]
        for kind, figures in kinds.items()
    ]
    typer.echo(f"judge: {report['judge']}\n")
    print_table(["planted damage", "pairs", *(title for title, _ in COLUMNS)], rows)
    if damage["num_missing"]:
        typer.echo(f"\n{damage['num_missing']} pairs have no verdict and are left out")
    typer.echo("\nboth orders averaged, ties count half, 95 % intervals over prompts")
    if not report["refused"]:
        typer.echo(f"may be used for headlines: right on at least {report['min_accuracy']}")
