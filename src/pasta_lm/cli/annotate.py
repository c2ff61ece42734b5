"""Annotate instruction data: a teacher model, or a rule, marks what is independent in answers."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import CostLimit, option

if TYPE_CHECKING:
    from pasta_lm.annotate.recipe import AnnotateConfig
    from pasta_lm.annotate.run import Progress, Run
    from pasta_lm.annotate.tally import Tally

INTERRUPTED = 130
NUM_SAMPLED = 1000
"""Rows of a data set of the hub that an estimate reads, at most: the run reads them once more."""
SECONDS_BETWEEN_LINES = 60.0
"""Of progress, where standard error is no terminal."""


def annotate(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="The recipe; see docs/annotation.md.")
    ],
    limit: Annotated[
        int | None, option("--limit", metavar="N", min=1, help="Only the first N rows.")
    ] = None,
    dry_run: Annotated[
        bool, option("--dry-run", help="Show the estimate and one request, ask nothing.")
    ] = False,
    cost_limit: CostLimit = None,
) -> None:
    """Mark what is independent in the answers of a data set.

    Every paid reply is on disk before it counts: the same command goes on where a run stopped,
    whatever stopped it. Writes a journal and, from it, the records, the failures and a data card.
    Ctrl-C awaits the requests in flight and sends no other; a second one stops at once.
    """
    from pasta_lm.annotate.recipe import MARKDOWN_RULE, AnnotateConfig
    from pasta_lm.annotate.run import INTERRUPT
    from pasta_lm.annotate.run import annotate as run_annotation
    from pasta_lm.recipe import read_recipe
    from pasta_lm.tasks.rules import rule_document

    recipe = read_recipe(config, AnnotateConfig)
    num_rows = _show_estimate(recipe, limit)
    if dry_run:
        _show_request(recipe, limit)
        return
    try:
        with _progress(num_rows) as progress:
            run = run_annotation(
                recipe,
                rule=rule_document if recipe.annotator == MARKDOWN_RULE else None,
                limit=limit,
                cost_limit_usd=cost_limit,
                progress=progress,
                notice=_show_notice,
            )
    except KeyboardInterrupt:
        typer.echo(f"pasta: stopped at once; what was paid is kept. {_go_on()}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _show_end(run)
    for file in run.files:
        typer.echo(str(file))
    if run.stopped_by == INTERRUPT:
        raise typer.Exit(INTERRUPTED)


def _show_estimate(recipe: AnnotateConfig, limit: int | None) -> int | None:
    """Say what a run will take, and return how many rows there are if that is known."""
    from pasta_lm.annotate.run import source_rows
    from pasta_lm.annotate.tally import estimate

    if recipe.teacher is None:
        typer.echo(
            "pasta: markdown_rule is a heuristic: it asks nobody and costs nothing", err=True
        )
        return None
    is_sample = recipe.source.hub is not None and (limit is None or limit > NUM_SAMPLED)
    rows = source_rows(recipe, limit)
    found = estimate(islice(rows, NUM_SAMPLED) if is_sample else rows, recipe.teacher)
    cost = "no prices given" if found.cost_usd is None else f"about {found.cost_usd:.2f} USD"
    of = "the first " if is_sample else ""
    typer.echo(
        f"pasta: estimate for {of}{found.num_rows} rows ({found.num_skipped} skipped): "
        f"{found.tokens.prompt / 1e6:.2f} M tokens in, {found.tokens.completion / 1e6:.2f} M out, "
        f"{cost}, {found.wall_s / 60:.0f} min or more",
        err=True,
    )
    return limit if is_sample else found.num_rows


def _show_request(recipe: AnnotateConfig, limit: int | None) -> None:
    """Print what the teacher would be told of the first answer."""
    from pasta_lm.annotate.run import source_rows
    from pasta_lm.annotate.teacher import Conversation

    row = next((one for one in source_rows(recipe, limit) if one.skipped is None), None)
    if row is None or recipe.teacher is None:
        return
    for message in Conversation(row.prompt, row.answer, bounds=recipe.filters.bounds).messages:
        typer.echo(f"--- {message['role']}\n{message['content']}")


def _show_notice(num_in_flight: int) -> None:
    typer.echo(
        f"pasta: waiting for {num_in_flight} requests in flight; Ctrl-C again stops at once",
        err=True,
    )


def _show_end(run: Run) -> None:
    typer.echo(f"pasta: {_line(run.tally)}", err=True)
    if run.stopped_by:
        typer.echo(f"pasta: stopped by {run.stopped_by}. {_go_on()}", err=True)


def _go_on() -> str:
    """Return the command that was typed: it goes on where the run stopped."""
    return f"To go on: {shlex.join(['pasta', *sys.argv[1:]])}"


def _line(tally: Tally) -> str:
    rows = tally.num_rows
    cost = f", {tally.cost_usd:.2f} USD" if tally.has_prices else ""
    return (
        f"{tally.num_ended} rows: {rows['ok']} ok, {rows['failed']} failed, "
        f"{rows['skipped']} skipped; {tally.tokens.prompt} tokens in, "
        f"{tally.tokens.completion} out{cost}"
    )


def _now_and_then() -> Progress:
    due_s = time.monotonic() + SECONDS_BETWEEN_LINES

    def show(tally: Tally) -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + SECONDS_BETWEEN_LINES
            typer.echo(f"pasta: {_line(tally)}", err=True)

    return show


@contextmanager
def _progress(num_rows: int | None) -> Iterator[Progress]:
    """Give what shows progress on standard error: a bar on a terminal, now and then a line else."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    from pasta_lm.cli.terminal import console

    if not sys.stderr.isatty():
        yield _now_and_then()
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeLeft(), TextColumn("{task.description}"))
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=num_rows)
        yield lambda tally: bar.update(
            task, completed=tally.num_ended, total=num_rows, description=_line(tally)
        )
