"""``pasta answer``: let a model answer instructions, for what it will be taught on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.exit_codes import INTERRUPTED
from pasta_lm.cli.flags import option
from pasta_lm.cli.terminal import Progress, bars, has_bars, say, silence_libraries

if TYPE_CHECKING:
    from pasta_lm.annotate.answer_run import AnswerConfig, Answered

SECONDS_BETWEEN_LINES = 60.0


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
    from pasta_lm.annotate.answer_run import AnswerConfig
    from pasta_lm.recipe import read_recipe

    recipe = read_recipe(config, AnswerConfig, changes or ())
    silence_libraries()
    try:
        with bars() as show:
            found = answer_all(recipe, show)
    except KeyboardInterrupt:
        say("interrupted; the same command continues the run")
        raise typer.Exit(INTERRUPTED) from None
    counts = ", ".join(f"{count} {reason}" for reason, count in found.counts.items())
    say(f"{found.num_answers} answers, {found.num_tokens} tokens: {counts}")
    typer.echo(str(Path(recipe.out) / "usable.jsonl"))


def answer_all(recipe: AnswerConfig, show: Progress) -> Answered:
    """Carry out a recipe; progress is a bar, or a line each minute where there are no bars."""
    from pasta_lm.annotate.answer_run import answer as carry_out
    from pasta_lm.strategies.model import Pasta

    def load() -> Pasta:
        return Pasta.from_pretrained(
            recipe.model,
            dtype=recipe.dtype,
            device=recipe.device,
            pool_tokens=recipe.pool_tokens,
        )

    return carry_out(recipe, load, minute_lines("answers", show))


def minute_lines(name: str, show: Progress) -> Callable[[int, int], None]:
    """Return a function that shows progress: a bar in a terminal, a line each minute elsewhere."""
    due_s = time.monotonic() + SECONDS_BETWEEN_LINES

    def report(done: int, total: int) -> None:
        nonlocal due_s
        show(name, done, total)
        if time.monotonic() >= due_s and not has_bars():
            due_s = time.monotonic() + SECONDS_BETWEEN_LINES
            say(f"{done} of {total} {name}")

    return report
