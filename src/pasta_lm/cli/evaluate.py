"""Evaluate: verifiable tasks, answered by strategies and held against the sequential baseline."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lm.cli.flags import (
    Device,
    Draft,
    Dtype,
    Json,
    Model,
    Positions,
    option,
    require_draft,
    require_one_of,
)
from pasta_lm.cli.published_table import NoPublished
from pasta_lm.cli.terminal import bars
from pasta_lm.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Measure quality and speed.")

INTERRUPTED = 130
ROWS = (
    ("quality", "quality (mean grade)"),
    ("quality_difference", "  minus the baseline's"),
    ("win_rate", "win rate"),
    ("theoretical_speedup", "theoretical speedup"),
    ("realised_speedup", "realised speedup"),
    ("parallelism", "parallelism"),
    ("length_ratio", "length / baseline's"),
    ("well_formed", "well formed"),
    ("well_formed_unmasked", "  with the mask off"),
    ("fork_precision", "fork precision"),
    ("fork_recall", "fork recall"),
    ("sync_precision", "sync precision"),
    ("sync_recall", "sync recall"),
    ("pair_accuracy", "pair accuracy"),
    ("pairs_told_apart", "  sides told apart"),
)


@app.callback()
def evaluate() -> None:
    """Measure quality and speed."""


@app.command()
def tasks(
    model: Model = None,
    baseline: Annotated[
        str | None,
        option(
            "--baseline", metavar="DIR|HF_ID", help="Whose sequential answers are the yardstick."
        ),
    ] = None,
    strategies: Annotated[
        str, option("--strategies", metavar="A,B", help="Ways to answer, by comma.")
    ] = "sequential,pasta",
    draft: Draft = None,
    bounds: Annotated[
        bool, option("--bounds", help="Also replay forks everywhere, and by chance.")
    ] = False,
    num_prompts: Annotated[
        int,
        option("--num-prompts", metavar="N", min=1, help="Of the families that training sees."),
    ] = 420,
    num_timed: Annotated[
        int,
        option("--num-timed", metavar="N", min=0, help="Of each family decoded alone, for clocks."),
    ] = 3,
    split: Annotated[
        str, option("--split", metavar="SPLIT", help="train, dev, test or hard.")
    ] = "test",
    wordings: Annotated[
        str | None,
        option("--wordings", metavar="SPLIT", help="Take the wordings of another split."),
    ] = None,
    seed: Annotated[int, option("--seed", metavar="S", min=0, help="Of the first prompts.")] = 0,
    max_tokens: Annotated[
        int, option("--max-tokens", metavar="N", min=1, help="Tokens of an answer, all threads.")
    ] = 1024,
    records: Annotated[
        Path | None, option("--records", metavar="FILE", help="Write every graded answer here.")
    ] = None,
    baseline_records: Annotated[
        Path | None,
        option("--baseline-records", metavar="FILE", help="Take the baseline's answers from here."),
    ] = None,
    threads: Annotated[
        int | None, option("--threads", metavar="N", min=1, help="CPU threads of torch.")
    ] = None,
    workers: Annotated[
        int,
        option("--workers", metavar="N", min=1, help="Processes that answer; clocks run in one."),
    ] = 1,
    positions: Positions = None,
    dtype: Dtype = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Grade answers to verifiable tasks, and time them.

    Several strategies answer the same prompts; figures have intervals. The sequential strategy is
    answered by the baseline: the built-in model's sequential twin, or the model itself. Greedy;
    grades from many prompts decoded together, clocks from some decoded alone.
    """
    from json import dumps

    from pasta_lm import __version__
    from pasta_lm.cli.terminal import silence_libraries
    from pasta_lm.strategies.model import BUILTIN, STRATEGIES, baseline_of
    from pasta_lm.tasks.task import Split

    names = tuple(name.strip() for name in strategies.split(","))
    for name in names:
        require_one_of("--strategies", name, STRATEGIES)
    require_draft(draft, names)
    for flag, value in (("--split", split), ("--wordings", wordings)):
        require_one_of(flag, value, [one.value for one in Split])
    silence_libraries()
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it once, when it is imported
    from pasta_lm.evaluate.answered import write_answers
    from pasta_lm.evaluate.tasks import TaskSettings, answer_tasks, report
    from pasta_lm.evaluate.workers import Workers

    if records and baseline_records and records.resolve() == baseline_records.resolve():
        raise InputError(f"{records} would be read and written", hint="give --records another name")
    if records is not None:
        write_answers(records, ())  # whether it can be written is better known now than at the end
    settings = TaskSettings(
        strategies=names,
        num_prompts=num_prompts,
        num_timed=num_timed,
        split=split,
        wordings=wordings,
        first_seed=seed,
        max_tokens=max_tokens,
        bounds=bounds,
        positions=positions,
        baseline_records=baseline_records,
    )
    load = partial(_models, model, baseline, draft, dtype=dtype, device=device)
    ours, theirs = load()
    try:
        with bars() as progress, Workers(workers, load) if workers > 1 else nullcontext() as pool:
            answers = answer_tasks(settings, ours, theirs, progress, pool)
    except KeyboardInterrupt:
        typer.echo("pasta: interrupted; nothing was measured", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if records is not None:
        write_answers(records, answers.all())
    found = report(settings, answers, ours, theirs)
    named = model or BUILTIN
    found |= {"model": named, "baseline": baseline or baseline_of(named), "version": __version__}
    if json:
        typer.echo(dumps(found, ensure_ascii=False))
    else:
        _print(found)


@app.command()
def programs(
    records: Annotated[
        Path, typer.Argument(metavar="RECORDS.jsonl", help="What tasks --records wrote.")
    ],
    out: Annotated[Path, option("--out", metavar="FILE.jsonl", help="What replay reads.")],
    strategy: Annotated[
        str, option("--strategy", metavar="NAME", help="Whose answers: pasta, apar, sot.")
    ] = "pasta",
) -> None:
    """Take the programs of recorded answers, to replay them.

    Those of timed answers in the families that training sees, with their prompts.
    """
    from pasta_lm.evaluate.programs import write_programs

    typer.echo(f"{out}: {write_programs(records, strategy, out)} programs")


@app.command()
def frontier(
    comparison: Annotated[
        Path, typer.Argument(metavar="COMPARISON.toml", help="Which points, and their records.")
    ],
    html: Annotated[
        Path | None, option("--html", metavar="OUT.html", help="Write a page to look into.")
    ] = None,
    plot: Annotated[
        Path | None, option("--plot", metavar="OUT.svg", help="Write the plot alone.")
    ] = None,
    num_shown: Annotated[
        int, option("--num-shown", metavar="N", min=0, help="Prompts of a family on the page.")
    ] = 2,
    no_published: NoPublished = False,
    json: Json = False,
) -> None:
    """Compare many models and strategies from their records.

    Runs no model: what has no file yet is printed as "not run", with the command that makes it.
    """
    from json import dumps

    from pasta_lm.cli.frontier_table import print_frontier
    from pasta_lm.cli.terminal import write_text
    from pasta_lm.evaluate.comparison import read_comparison
    from pasta_lm.evaluate.frontier import report
    from pasta_lm.evaluate.measured import measure
    from pasta_lm.evaluate.page import page, svg
    from pasta_lm.evaluate.published import published

    asked = read_comparison(comparison)
    measured = measure(asked)
    found = report(asked, measured)
    if not no_published:
        found["published"] = published()
    if plot is not None:
        write_text(plot, svg(found))
    if html is not None:
        write_text(html, page(found, measured, num_shown=num_shown, wordings=asked.wordings))
    if json:
        typer.echo(dumps(found, ensure_ascii=False))
    else:
        print_frontier(found)


def _models(
    model: str | None,
    baseline: str | None,
    draft: str | None,
    *,
    dtype: str | None,
    device: str | None,
) -> Any:
    """Load the model and its baseline, for which the draft guesses.

    The built-in model's baseline is its sequential twin.
    """
    from pasta_lm.strategies.model import BUILTIN, Pasta, baseline_of

    name = model or BUILTIN
    wanted = baseline or baseline_of(name)
    load = partial(Pasta.from_pretrained, dtype=dtype, device=device, pool_tokens=POOL_TOKENS)
    theirs = load(wanted, draft=draft)
    return (theirs if wanted == name else load(name)), theirs


POOL_TOKENS = 65_536
"""Cache entries: about fifty prompts of the tasks at the same time."""


def _print(found: dict[str, Any]) -> None:
    from pasta_lm.cli.terminal import console

    out = partial(console(sys.stdout).print, soft_wrap=True)  # a row is a line, however wide
    columns = found["strategies"]
    out("{:<26}".format("") + "".join(f"{name:>26}" for name in columns))
    for key, label in ROWS:
        cells = [_cell(figures.get(key)) for figures in columns.values()]
        if any(cell != "-" for cell in cells):
            out(f"{label:<26}" + "".join(f"{cell:>26}" for cell in cells))
    held_out = [_cell(figures["held_out"].get("quality")) for figures in columns.values()]
    out(f"{'quality, held-out':<26}" + "".join(f"{cell:>26}" for cell in held_out))
    out()
    out(f"{'family: quality, speedup':<26}" + "".join(f"{name:>26}" for name in columns))
    for family in next(iter(columns.values()))["families"]:
        cells = [_short(figures["families"][family]) for figures in columns.values()]
        out(f"{family:<26}" + "".join(f"{cell:>26}" for cell in cells))
    out(
        f"\n{found['kind']}: {found['num_prompts']} prompts of split {found['split']}, wordings of "
        f"{found['wordings']}; {found['model']} against the sequential answers of "
        f"{found['baseline']}; {found['dtype']} on {found['device']}; 95 % bootstrap intervals; "
        "speedups are geometric means"
    )


def _cell(figure: Any) -> str:
    if figure is None:
        return "-"
    if isinstance(figure, float):
        return f"{figure:.3f}"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def _short(figures: dict[str, Any]) -> str:
    """Return a family's grade and speedup, where each is known."""
    speedup = figures["realised_speedup"] or figures["theoretical_speedup"]
    quality = figures.get("quality")
    grade = "-" if quality is None else f"{quality['mean']:.3f}"
    return f"{grade}  {speedup['mean']:.2f}x" if speedup else grade
