"""``pasta annotate``: mark the independent parts of answers."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from pasta_lm.cli.flags import DryRun, Limit, option
from pasta_lm.cli.terminal import FAILED, INTERRUPTED, bars, interruptible, say
from pasta_lm.learn.annotate.own_answers import AnswerConfig, answer
from pasta_lm.learn.annotate.recipe import AnnotateConfig
from pasta_lm.learn.annotate.run import Tally, estimate, source_rows
from pasta_lm.learn.annotate.run import annotate as run_annotation
from pasta_lm.learn.annotate.teacher import TeacherConversation
from pasta_lm.recipe import read_recipe
from pasta_lm.strategies.model import Pasta

WAITING = "waiting for {} requests in flight; Ctrl-C again stops at once"
MAX_ESTIMATED_ROWS = 1000  # of a data set of the hub; the run reads them again


def annotate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="See docs/annotation.md.")],
    limit: Limit = None,
    dry_run: DryRun = False,
    engine: Annotated[str | None, option("--engine URL[,URL]", "Servers of the teacher.")] = None,
) -> None:
    """Mark the independent parts of the answers of a data set.

    A teacher model on a server or a rule marks them; with a table [answers] a model answers the
    instructions first. Every reply is saved when it arrives, so the same command continues a run
    that was stopped. Writes a journal and, from it, the records and the failures.
    Ctrl-C waits for the requests in flight and sends no others; a second Ctrl-C stops at once.
    """
    recipe = read_recipe(config, AnnotateConfig)
    if engine is not None:
        recipe = recipe.taught_by(engine)
    if recipe.answers is not None and not dry_run:
        _answer_first(recipe.answers)
    num_rows = _print_estimate(recipe, limit)
    if dry_run:
        _print_request(recipe, limit)
        return
    to_continue = f"To go on: {shlex.join(['pasta', *sys.argv[1:]])}"
    try:
        with bars() as show:
            run = run_annotation(
                recipe,
                limit=limit,
                progress=lambda tally: show("rows", len(tally.rows), num_rows, _summary(tally)),
                notice=lambda num: say(WAITING.format(num)),
            )
    except KeyboardInterrupt:
        say(f"stopped at once; what was paid is kept. {to_continue}")
        raise typer.Exit(INTERRUPTED) from None
    say(f"{len(run.tally.rows)} rows: {_summary(run.tally)}")
    if run.is_interrupted:
        say(f"stopped by interrupt. {to_continue}")
    for file in run.files:
        typer.echo(str(file))
    if run.is_interrupted:
        raise typer.Exit(INTERRUPTED)
    if run.tally.num_rows["failed"] and not run.tally.num_rows["ok"]:
        say("no row was annotated: failed.jsonl has the reasons")
        raise typer.Exit(FAILED)


def _summary(tally: Tally) -> str:
    rows = ", ".join(f"{tally.num_rows[name]} {name}" for name in ("ok", "failed", "skipped"))
    return f"{rows}; {tally.spent}"


def _answer_first(recipe: AnswerConfig) -> None:
    load = partial(
        Pasta.from_pretrained,
        recipe.model,
        dtype=recipe.dtype,
        device=recipe.device,
        pool_tokens=recipe.pool_tokens,
    )
    with interruptible(), bars() as show:
        answered = answer(recipe, load, partial(show, "answers"))
    counts = ", ".join(f"{count} {reason}" for reason, count in answered.counts.items())
    say(f"{answered.num_answers} answers, {answered.num_tokens} tokens: {counts}")


def _print_estimate(recipe: AnnotateConfig, limit: int | None) -> int | None:
    if recipe.teacher is None:
        say(f"{recipe.annotator} sends no requests")
        return None
    is_sample = recipe.rows.hub is not None and (limit is None or limit > MAX_ESTIMATED_ROWS)
    rows = source_rows(recipe, limit)
    some = islice(rows, MAX_ESTIMATED_ROWS) if is_sample else rows
    num_rows, needs = estimate(some, recipe.teacher)
    say(f"estimate for {'the first ' if is_sample else ''}{needs}")
    return limit if is_sample else num_rows


def _print_request(recipe: AnnotateConfig, limit: int | None) -> None:
    rows = (row for row in source_rows(recipe, limit) if row.skipped is None)
    for row in islice(rows, 1) if recipe.teacher else ():
        talk = TeacherConversation(row.prompt, row.answer, recipe.filters)
        for message in talk.messages:
            typer.echo(f"--- {message['role']}\n{message['content']}")
