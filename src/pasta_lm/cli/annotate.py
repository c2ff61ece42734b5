"""Annotate instruction data: a teacher model, or a rule, marks what is independent in answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import option

if TYPE_CHECKING:
    from pasta_lm.data.annotate import Progress, Run
    from pasta_lm.data.annotate_config import AnnotateConfig
    from pasta_lm.data.budget import Tally

INTERRUPTED = 130
NUM_SAMPLED = 1000
"""Rows of a data set of the hub that an estimate reads, where no limit says how many there are."""


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
    cost_limit: Annotated[
        float | None,
        option(
            "--cost-limit",
            metavar="USD",
            min=0,
            help="Ask nothing that could cost more than this in all; needs prices.",
        ),
    ] = None,
) -> None:
    """Mark what is independent in the answers of a data set.

    Every paid reply is on disk before it counts: the same command goes on where a run stopped,
    whatever stopped it. Writes a journal and, from it, the records, the failures and a data card.
    """
    from pasta_lm.data.annotate import INTERRUPT
    from pasta_lm.data.annotate import annotate as run_annotation
    from pasta_lm.data.annotate_config import MARKDOWN_RULE, AnnotateConfig
    from pasta_lm.tasks.rules import rule_document
    from pasta_lm.train.config import read_recipe

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
            )
    except KeyboardInterrupt:
        typer.echo("pasta: stopped; the same command goes on from here", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _show_end(run)
    for file in run.files:
        typer.echo(str(file))
    if run.stopped_by == INTERRUPT:
        raise typer.Exit(INTERRUPTED)


def _show_estimate(recipe: AnnotateConfig, limit: int | None) -> int | None:
    """Say what a run will take, and return how many rows there are if that is known."""
    from pasta_lm.data.annotate import source_rows
    from pasta_lm.data.budget import estimate

    if recipe.teacher is None:
        typer.echo(
            "pasta: markdown_rule is a heuristic: it asks nobody and costs nothing", err=True
        )
        return None
    is_sample = recipe.source.hub is not None and limit is None
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
    return None if is_sample else found.num_rows


def _show_request(recipe: AnnotateConfig, limit: int | None) -> None:
    """Print what the teacher would be told of the first answer."""
    from pasta_lm.data.annotate import source_rows
    from pasta_lm.data.teacher import Conversation

    row = next((one for one in source_rows(recipe, limit) if one.skipped is None), None)
    if row is None or recipe.teacher is None:
        return
    for message in Conversation(row.prompt, row.answer, bounds=recipe.filters.bounds).messages:
        typer.echo(f"--- {message['role']}\n{message['content']}")


def _show_end(run: Run) -> None:
    typer.echo(f"pasta: {_line(run.tally)}", err=True)
    if run.stopped_by:
        typer.echo(f"pasta: stopped by {run.stopped_by}; the same command goes on", err=True)


def _line(tally: Tally) -> str:
    rows = tally.num_rows
    cost = f", {tally.cost_usd:.2f} USD" if tally.has_prices else ""
    return (
        f"{tally.num_ended} rows: {rows['ok']} ok, {rows['failed']} failed, "
        f"{rows['skipped']} skipped; {tally.tokens.prompt} tokens in, "
        f"{tally.tokens.completion} out{cost}"
    )


@contextmanager
def _progress(num_rows: int | None) -> Iterator[Progress | None]:
    """Give what shows progress on standard error, where that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    from pasta_lm.cli.terminal import console

    if not sys.stderr.isatty():
        yield None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeLeft(), TextColumn("{task.description}"))
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=num_rows)
        yield lambda tally: bar.update(
            task, completed=tally.num_ended, total=num_rows, description=_line(tally)
        )
