"""``pasta teach``: teach a model from its own answers, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pasta_lm.cli.flags import DryRun, Out, Set, option, require_one_of
from pasta_lm.cli.terminal import bars, has_bars, interruptible


def teach(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, GGUF file or hub id.")],
    out: Out,
    recipe: Annotated[Path | None, option("--recipe R.toml", "See docs/teach.md.")] = None,
    target: Annotated[str | None, option("--for servers", "Train for stock servers.")] = None,
    budget_hours: Annotated[
        float | None, option("--budget-hours H", "Begin no further step after so much time.", min=0)
    ] = None,
    dry_run: DryRun = False,
    changes: Set = None,
) -> None:
    """Finetune a model on its own annotated answers.

    The model answers instructions; the answers are annotated; a sequential baseline and a taught
    model learn from them; with a judge, stage two follows; both are measured. Each step is a verb
    with its recipe in DIR. The same command continues a run that was stopped in any way.
    """
    from pasta_lm.learn.teach.config import TeachConfig
    from pasta_lm.recipe import read_recipe

    if target is not None:
        require_one_of("--for", target, ["servers"])
    config = read_recipe(recipe, TeachConfig, changes or ())
    from pasta_lm.learn.teach import run

    for_servers = target is not None
    if dry_run:
        typer.echo(run.describe(model, config, for_servers=for_servers), err=True)
        return
    with interruptible(), bars() as show:
        folder = run.teach(
            model,
            out,
            config,
            for_servers=for_servers,
            budget_hours=budget_hours,
            show=show if has_bars() else None,
        )
    typer.echo(str(folder))
