"""``pasta-lab examples``: print prompts of the tasks."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

import typer

from pasta_lm.cli.flags import Json, option, require_one_of
from pasta_lm.cli.terminal import print_json


def examples(
    family: Annotated[str | None, option("--family NAME", "Only this family of tasks.")] = None,
    seed: Annotated[int | None, option("--seed S", "Seed of the prompts.", min=0)] = None,
    answers: Annotated[
        bool, option("--answers", "Also the answer, with its true structure.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a prompt of each task family, as a command to copy.

    A model that was trained on the tasks answers them; the built-in model was not. The names, words
    and numbers in the prompts are held out from training.
    """
    from pasta_lab.tasks.gold import gold
    from pasta_lab.tasks.registry import FAMILIES, example, training_families

    names = training_families()
    require_one_of("--family", family, names)
    tasks = [example(name, seed) for name in names if family in (None, name)]
    rows = [{"family": task.family, "prompt": task.prompt} for task in tasks]
    if answers:
        for row, task in zip(rows, tasks, strict=True):
            row["answer"] = gold(task).with_spaces_after_tags().annotator_form()
    if json:
        print_json({"examples": rows})
        return
    for row, task in zip(rows, tasks, strict=True):
        about = " ".join((FAMILIES[task.family].make.__doc__ or "").split())
        typer.echo(
            f"# {task.family} ({task.dependence}). {about}\npasta run {quote(task.prompt)}\n"
        )
        if answers:
            typer.echo(f"{row['answer']}\n")
