"""``pasta train``: supervised finetuning and preference optimisation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pasta_lm.cli.flags import DryRun, Engine, Set, option
from pasta_lm.cli.terminal import bars, interruptible

Recipe = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Examples: docs/training.md.")]
RESUMABLE = "--resume goes on from what was saved"
Resume = Annotated[bool, option("--resume", "Continue an interrupted run where it stopped.")]
Overwrite = Annotated[bool, option("--overwrite", "Delete the run in train.out, and begin anew.")]


def sft(
    config: Recipe,
    changes: Set = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
) -> None:
    """Finetune a model on annotated answers.

    Prints one encoded example, then trains. Writes checkpoints, log.jsonl and the model folder to
    train.out, and prints the path of the model folder.
    """
    from pasta_lm.learn.train.config import SftConfig
    from pasta_lm.recipe import read_recipe

    recipe = read_recipe(config, SftConfig, changes or ())
    from pasta_lm.learn.train.sft import preflight, train_sft

    if dry_run:
        typer.echo(preflight(recipe), err=True)
        return
    with interruptible(RESUMABLE):
        typer.echo(str(train_sft(recipe, resume=resume, overwrite=overwrite)))


def preference(
    config: Recipe,
    changes: Set = None,
    engine: Engine = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
) -> None:
    """Train a finetuned model to prefer fast and good answers.

    Each round samples answers to prompts, scores them, and trains on the best and the worst of
    each prompt. Writes everything to train.out, and prints the model folder of the last round.
    With --engine, servers sample; from round two on they must serve the newest folder.
    """
    from pasta_lm.learn.train.config import PreferenceConfig
    from pasta_lm.recipe import read_recipe

    served = [f"rollouts.servers.addresses={json.dumps(engine)}"] * (engine is not None)
    recipe = read_recipe(config, PreferenceConfig, [*served, *(changes or ())])
    from pasta_lm.learn.train.preference import preflight, train_preference

    if dry_run:
        typer.echo(preflight(recipe), err=True)
        return
    with interruptible(RESUMABLE), bars() as show:
        folder = train_preference(recipe, resume=resume, overwrite=overwrite, show=show)
        typer.echo(str(folder))
