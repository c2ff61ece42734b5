"""Print prompts that the built-in model can answer, each as a command to copy."""

from __future__ import annotations

from typing import Annotated

import typer

from pasta_lm.cli.flags import Json, option, require_one_of


def examples(
    family: Annotated[
        str | None, option("--family", metavar="NAME", help="Only this family of tasks.")
    ] = None,
    seed: Annotated[
        int | None, option("--seed", metavar="S", min=0, help="Draw other prompts.")
    ] = None,
    json: Json = False,
) -> None:
    """Print prompts that the built-in model can answer.

    One of each task family that it was trained for, as a command to copy. Names, words and numbers
    are drawn from a share that training never saw.
    """
    from json import dumps
    from shlex import quote

    from pasta_lm.tasks.examples import example
    from pasta_lm.tasks.registry import training_families

    names = training_families()
    require_one_of("--family", family, names)
    drawn = [example(name, seed) for name in names if family in (None, name)]
    if json:
        rows = [{"family": task.family, "prompt": task.prompt} for task in drawn]
        typer.echo(dumps({"examples": rows}, ensure_ascii=False))
        return
    for task in drawn:
        typer.echo(f"# {task.family}\npasta run {quote(task.prompt)}\n")
