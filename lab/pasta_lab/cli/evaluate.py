"""Evaluate: verifiable tasks answered by strategies, and comparisons of their records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lab.cli.figures import interval, number
from pasta_lm.cli.evaluate import read_settings, split_names
from pasta_lm.cli.flags import Engine, Json, Model, Recipe, Set, Strategies, option
from pasta_lm.cli.terminal import (
    bars,
    interruptible,
    print_json,
    print_table,
    silence_libraries,
    write_text,
)
from pasta_lm.recipe import read_recipe

if TYPE_CHECKING:
    from pasta_lab.evaluate.tasks import TaskSettings

app = typer.Typer(no_args_is_help=True, help="Measure quality and speed.")

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


@app.command()
def tasks(
    recipe: Recipe = None,
    model: Model = None,
    baseline: Annotated[str | None, option("--baseline MODEL", "The sequential baseline.")] = None,
    strategies: Strategies = None,
    num_prompts: Annotated[
        int | None, option("--num-prompts N", "Number of prompts of the trained families.", min=1)
    ] = None,
    num_timed: Annotated[
        int | None, option("--num-timed N", "Prompts a family that are timed.", min=0)
    ] = None,
    split: Annotated[str | None, option("--split SPLIT", "train, dev, test or hard.")] = None,
    seed: Annotated[int | None, option("--seed S", "Seed of the first prompt.", min=0)] = None,
    records: Annotated[
        Path | None, option("--records FILE", "Write every graded answer here.")
    ] = None,
    engine: Engine = None,
    changes: Set = None,
    as_json: Json = False,
) -> None:
    """Grade answers to verifiable tasks, and time them.

    Several strategies answer the same prompts; figures have intervals. The sequential strategy is
    answered by the baseline: for the built-in model its sequential baseline, else the model itself.
    Greedy; grades from prompts decoded together, clocks from prompts decoded one at a time.
    """
    flags = {
        "model": model,
        "baseline": baseline,
        "strategies": split_names(strategies),
        "num_prompts": num_prompts,
        "num_timed": num_timed,
        "split": split,
        "seed": seed,
        "servers.addresses": engine,
    }
    silence_libraries()
    from pasta_lab.evaluate.tasks import TaskSettings

    figures = _evaluate_tasks(read_settings(TaskSettings, recipe, flags, changes), records)
    (print_json if as_json else _print)(figures)


def _evaluate_tasks(recipe: TaskSettings, records: Path | None) -> dict[str, Any]:
    """Let the models answer, write the records, and return the report."""
    from pasta_lab.evaluate.records import write_answers
    from pasta_lab.evaluate.tasks import evaluate_tasks, report
    from pasta_lm import __version__

    if recipe.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(recipe.threads)  # torch reads it when it is imported
    if records is not None:
        write_answers(records, ())  # fails now rather than at the end
    models = recipe.load_models()
    both = models["model"], models["baseline"]
    with interruptible("nothing was measured"), bars() as progress:
        answers = evaluate_tasks(recipe, *both, progress)
    if records is not None:
        write_answers(records, answers.records())
    return report(recipe, answers, *both) | recipe.model_names | {"version": __version__}


def _print(report: dict[str, Any]) -> None:
    columns = report["strategies"]
    rows = [[label, *(_cell(run.get(key)) for run in columns.values())] for key, label in ROWS]
    held_out = [_cell(run["held_out"].get("quality")) for run in columns.values()]
    shown = [row for row in rows if {*row[1:]} != {"-"}]
    print_table(["", *columns], [*shown, ["quality, held-out", *held_out]])
    typer.echo()
    families = next(iter(columns.values()))["families"]
    print_table(
        ["family: quality, speedup", *columns],
        [[name, *(_short(run["families"][name]) for run in columns.values())] for name in families],
    )
    failed = max(run.get("num_failed", 0) for run in columns.values())
    if failed:
        typer.echo(f"\n{failed} prompts do not fit the context of a model: their grade is 0")
    typer.echo(
        f"\n{report['kind']}: {report['num_prompts']} prompts of split {report['split']}, wordings "
        f"of {report['wordings']}; {report['model']} against the sequential answers of "
        f"{report['baseline']}; {report['dtype']} on {report['device']}; 95 % bootstrap intervals; "
        "speedups are geometric means"
    )


def _cell(figure: Any) -> str:
    return number(figure, 3) if isinstance(figure, float) else interval(figure)


def _short(figures: dict[str, Any]) -> str:
    """Return a family's grade and speedup, as far as they are known."""
    speedup = figures["realised_speedup"] or figures["theoretical_speedup"]
    quality = figures.get("quality")
    grade = number(quality and quality["mean"], 3)
    return f"{grade}  {speedup['mean']:.2f}x" if speedup else grade


@app.command()
def frontier(
    comparison: Annotated[
        Path, typer.Argument(metavar="COMPARISON.toml", help="The points and their records.")
    ],
    page: Annotated[Path | None, option("--page OUT.md", "Write all figures as Markdown.")] = None,
    plot: Annotated[Path | None, option("--plot OUT.svg", "Write the plot as SVG.")] = None,
    no_published: Annotated[
        bool, option("--no-published", "Leave out the figures that the paper reports.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare many models and strategies from their records.

    Runs no model: a point without records is printed as "not run", with the command that makes
    them.
    """
    from pasta_lab.evaluate.frontier import report
    from pasta_lab.evaluate.pages import published
    from pasta_lab.evaluate.points import Comparison, read_points

    recipe = read_recipe(comparison, Comparison)
    figures = report(recipe, read_points(recipe))
    if not no_published:
        figures["published"] = published()
    if plot is not None:
        from pasta_lab.evaluate.figures import frontier_plot

        write_text(plot, frontier_plot(figures))
    if page is not None:
        from pasta_lab.evaluate.pages import frontier_page

        write_text(page, frontier_page(figures))
    (print_json if as_json else _print_frontier)(figures)


def _print_frontier(report: dict[str, Any]) -> None:
    from pasta_lab.evaluate.pages import facts, tables

    for table in tables(report):
        typer.echo(f"{table.title}\n")
        print_table(table.header, table.texts(), text_columns=(0, 1))
        typer.echo()
    typer.echo(facts(report))


@app.command()
def agreement(
    first: Annotated[Path, typer.Argument(metavar="A.jsonl", help="Annotated answers.")],
    second: Annotated[
        Path, typer.Argument(metavar="B.jsonl", help="Another annotation of the same answers.")
    ],
    as_json: Json = False,
) -> None:
    """Compare two annotations of the same answers.

    Answers are paired by their ids. F1 of blocks and of syncs, and whether both fork. Runs no
    model.
    """
    from pasta_lab.evaluate.agreement import compared, rows

    figures = compared(first, second)
    if as_json:
        print_json(figures)
        return
    print_table(["what", "measure", "agreement"], [list(row) for row in rows(figures)])
    named = ((figures[name], name) for name in ("blocks", "syncs"))
    counts = (f"{part['num_first']} and {part['num_second']} {name}" for part, name in named)
    typer.echo(f"\n{figures['num_answers']} answers; {', '.join(counts)}; 95 % bootstrap intervals")
