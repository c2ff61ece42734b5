"""``pasta examples``: print prompts of the verifiable tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from pasta_lm.cli.flags import Json, option, require_one_of
from pasta_lm.cli.tables import print_json


def examples(
    family: Annotated[
        str | None, option("--family", metavar="NAME", help="Only this family of tasks.")
    ] = None,
    seed: Annotated[
        int | None, option("--seed", metavar="S", min=0, help="Seed of the prompts.")
    ] = None,
    json: Json = False,
) -> None:
    """Print prompts of the verifiable tasks.

    Prints one prompt of each task family, as a command to copy. A model that was trained on the
    tasks answers them; the built-in model was not, and takes questions in plain English. The
    names, words and numbers in the prompts are held out from training.
    """
    from shlex import quote

    from pasta_lab.tasks.registry import example, training_families

    names = training_families()
    require_one_of("--family", family, names)
    drawn = [example(name, seed) for name in names if family in (None, name)]
    if json:
        rows = [{"family": task.family, "prompt": task.prompt} for task in drawn]
        print_json({"examples": rows})
        return
    for task in drawn:
        typer.echo(f"# {task.family}\npasta run {quote(task.prompt)}\n")
