"""``pasta-lab train``: supervised finetuning on generated tasks."""

from __future__ import annotations

import typer

from pasta_lm.cli.flags import Set
from pasta_lm.cli.teach import RESUMABLE, Overwrite, Recipe, Resume
from pasta_lm.cli.terminal import interruptible, silence_libraries

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Train a model on generated tasks."
)


@app.callback()
def train() -> None:
    """Train a model on generated tasks."""


@app.command()
def sft(
    config: Recipe, changes: Set = None, resume: Resume = False, overwrite: Overwrite = False
) -> None:
    """Finetune a model on answers to tasks; [data.tasks] of the recipe has their seed."""
    from pasta_lab.train import TaskSftConfig, train_sft_on_tasks
    from pasta_lm.recipe import read_recipe

    recipe = read_recipe(config, TaskSftConfig, changes or ())
    silence_libraries()
    with interruptible(RESUMABLE):
        typer.echo(str(train_sft_on_tasks(recipe, resume=resume, overwrite=overwrite)))
