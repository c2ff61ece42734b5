"""``pasta answer``: let a model answer instructions, for what it will be taught on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import option
from pasta_lm.cli.terminal import (
    Progress,
    bars,
    interruptible,
    minute_lines,
    say,
    silence_libraries,
)

if TYPE_CHECKING:
    from pasta_lm.learn.annotate.answer_run import AnswerConfig, Answered


def answer(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="The recipe; see docs/teach.md.")
    ],
    changes: Annotated[
        list[str] | None,
        option("--set", metavar="KEY=VALUE", help="Set a key of the recipe, such as limit=100."),
    ] = None,
) -> None:
    """Let a model answer instructions, to be taught on its own text.

    Writes all answers, those that are usable, and why the others are not. Every answer is saved
    when it is complete, so the same command continues a run that was stopped.
    """
    from pasta_lm.learn.annotate.answer_run import AnswerConfig
    from pasta_lm.recipe import read_recipe

    recipe = read_recipe(config, AnswerConfig, changes or ())
    silence_libraries()
    with interruptible(), bars() as show:
        found = answer_all(recipe, show)
    counts = ", ".join(f"{count} {reason}" for reason, count in found.counts.items())
    say(f"{found.num_answers} answers, {found.num_tokens} tokens: {counts}")
    typer.echo(str(Path(recipe.out) / "usable.jsonl"))


def answer_all(recipe: AnswerConfig, show: Progress) -> Answered:
    """Carry out a recipe; progress is a bar, or a line each minute where there are no bars."""
    from pasta_lm.learn.annotate.answer_run import answer as carry_out
    from pasta_lm.strategies.model import Pasta

    load = partial(
        Pasta.from_pretrained,
        recipe.model,
        dtype=recipe.dtype,
        device=recipe.device,
        pool_tokens=recipe.pool_tokens,
    )
    tell = minute_lines()

    def report(done: int, total: int) -> None:
        show("answers", done, total)
        tell(f"{done} of {total} answers")

    return carry_out(recipe, load, report)
