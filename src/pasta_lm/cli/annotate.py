"""``pasta annotate``: mark the independent parts of answers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.exit_codes import INTERRUPTED
from pasta_lm.cli.flags import CostLimit, option
from pasta_lm.cli.terminal import Progress, bars, minute_lines, say, silence_libraries

if TYPE_CHECKING:
    from pasta_lm.learn.annotate.log import Tally
    from pasta_lm.learn.annotate.recipe import AnnotateConfig
    from pasta_lm.learn.annotate.run import Rule

WAITING = "waiting for {} requests in flight; Ctrl-C again stops at once"
MAX_ESTIMATED_ROWS = 1000
"""Rows of a data set of the hub that an estimate reads; the run reads them again."""


def annotate(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.toml", help="The recipe; see docs/annotation.md.")
    ],
    limit: Annotated[
        int | None, option("--limit", metavar="N", min=1, help="Annotate only the first N rows.")
    ] = None,
    dry_run: Annotated[
        bool,
        option("--dry-run", help="Print the estimated cost and one request; send nothing."),
    ] = False,
    cost_limit: CostLimit = None,
    engine: Annotated[
        str | None,
        option(
            "--engine",
            metavar="URL[,URL]",
            help="Servers of the teacher, instead of teacher.base_url.",
        ),
    ] = None,
) -> None:
    """Mark the independent parts of the answers of a data set.

    A teacher model on a server, a taught model or a rule marks them. Every reply is saved when it
    arrives, so the same command continues a run that was stopped. Writes a journal and, from it,
    the records, the failures and a data card. Ctrl-C waits for the requests in flight and sends no
    others; a second Ctrl-C stops at once.
    """
    from pasta_lm.learn.annotate.recipe import AnnotateConfig
    from pasta_lm.learn.annotate.run import annotate as run_annotation
    from pasta_lm.learn.chat.pool import INTERRUPT
    from pasta_lm.recipe import read_recipe

    recipe = read_recipe(config, AnnotateConfig)
    if engine is not None:
        recipe = recipe.taught_by(engine)
    num_rows = _print_estimate(recipe, limit)
    if dry_run:
        _print_request(recipe, limit)
        return
    to_continue = f"To go on: {shlex.join(['pasta', *sys.argv[1:]])}"
    try:
        with bars() as show_bar:
            run = run_annotation(
                recipe,
                rule=rule_of(recipe),
                limit=limit,
                cost_limit_usd=cost_limit,
                progress=_reporter(show_bar, num_rows),
                notice=lambda num: say(WAITING.format(num)),
            )
    except KeyboardInterrupt:
        say(f"stopped at once; what was paid is kept. {to_continue}")
        raise typer.Exit(INTERRUPTED) from None
    say(_summary(run.tally))
    if run.stopped_by:
        say(f"stopped by {run.stopped_by}. {to_continue}")
    for file in run.files:
        typer.echo(str(file))
    if run.stopped_by == INTERRUPT:
        raise typer.Exit(INTERRUPTED)


def rule_of(recipe: AnnotateConfig) -> Rule | None:
    """Return what annotates without a server; None: the teacher does."""
    if recipe.teacher is not None:
        return None
    if recipe.forced is None:
        from pasta_lm.learn.annotate.layout_rule import markdown_rule

        return markdown_rule
    silence_libraries()
    from pasta_lab.annotate.forced import ForcedAnnotator
    from pasta_lm.engines.local.loading import load

    loaded = load(recipe.forced.model, dtype=recipe.forced.dtype)
    return ForcedAnnotator(loaded, recipe.forced.weights, recipe.filters.bounds)


def _print_estimate(recipe: AnnotateConfig, limit: int | None) -> int | None:
    """Print the estimate of a run, and return the number of rows if it is known."""
    from pasta_lm.learn.annotate.run import estimate, source_rows

    if recipe.teacher is None:
        say(f"{recipe.annotator} sends no requests and costs nothing")
        return None
    is_sample = recipe.source.hub is not None and (limit is None or limit > MAX_ESTIMATED_ROWS)
    rows = source_rows(recipe, limit)
    found = estimate(islice(rows, MAX_ESTIMATED_ROWS) if is_sample else rows, recipe.teacher)
    say(
        f"estimate for {'the first ' if is_sample else ''}{found.num_rows} rows "
        f"({found.num_skipped} skipped): {found.asking}, {found.wall_s / 60:.0f} min or more"
    )
    return limit if is_sample else found.num_rows


def _print_request(recipe: AnnotateConfig, limit: int | None) -> None:
    from pasta_lm.learn.annotate.run import source_rows
    from pasta_lm.learn.annotate.teacher import Conversation

    rows = (row for row in source_rows(recipe, limit) if row.skipped is None)
    for row in islice(rows, 1) if recipe.teacher else ():
        talk = Conversation(row.prompt, row.answer, bounds=recipe.filters.bounds)
        for message in talk.messages:
            typer.echo(f"--- {message['role']}\n{message['content']}")


def _summary(tally: Tally) -> str:
    rows = ", ".join(f"{tally.num_rows[name]} {name}" for name in ("ok", "failed", "skipped"))
    return f"{tally.num_ended} rows: {rows}; {tally.spent}"


def _reporter(show_bar: Progress, num_rows: int | None) -> Callable[[Tally], None]:
    """Return a function that shows progress: a bar in a terminal, a line each minute elsewhere."""
    tell = minute_lines()

    def report(tally: Tally) -> None:
        show_bar("rows", tally.num_ended, num_rows, _summary(tally))
        tell(_summary(tally))

    return report
