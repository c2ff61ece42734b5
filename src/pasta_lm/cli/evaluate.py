"""``pasta evaluate``: quality and speed of answers, computed by ``pasta_lm.measure``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pasta_lm.cli import flags
from pasta_lm.cli.flags import ENVIRONMENT, option
from pasta_lm.cli.terminal import FAILED, bars, interruptible, print_json, print_table, say
from pasta_lm.models.names import BUILTIN
from pasta_lm.recipe import read_recipe
from pasta_lm.strategies.model import baseline_of

if TYPE_CHECKING:
    from pasta_lm.measure.table import Report, Table

T = TypeVar("T")

AllowMissing = Annotated[
    bool, option("--allow-missing", "Give win rates although verdicts are missing: two each.")
]
Baseline = Annotated[str | None, option("--baseline DIR|HF_ID", "The sequential baseline.")]


def split_names(listed: str | None) -> list[str] | None:
    return None if listed is None else [name.strip() for name in listed.split(",")]


def read_settings(
    kind: type[T], recipe: Path | None, values: Mapping[str, Any], changes: Sequence[str] | None
) -> T:
    """Return a recipe's settings: ``--set`` over flags, environment, file and defaults."""
    machine = {key: os.environ.get(ENVIRONMENT[f"--{key}"]) or None for key in ("dtype", "device")}
    flags = (machine | dict(values)).items()
    lines = [f"{key}={json.dumps(value)}" for key, value in flags if value is not None]
    return read_recipe(recipe, kind, [*lines, *(changes or [])])


def print_tables(tables: Iterable[Table]) -> None:
    for number, table in enumerate(tables):
        if number:
            typer.echo()
        if table.title:
            typer.echo(table.title)
        print_table(table.header, table.texts())
        if table.note:
            typer.echo(f"\n{table.note}")


def print_report(report: Report, page: Path | None = None, *, as_json: bool) -> None:
    """Print a report as JSON, or its tables and facts; ``page`` is the file that has them too."""
    if as_json:
        print_json(report.to_dict())
        return
    print_tables(report.tables())
    typer.echo("".join(f"\n{fact}" for fact in report.facts))
    if page is not None:
        typer.echo(f"{page} has all figures")


def alpaca(
    out: flags.Out,
    recipe: flags.Recipe = None,
    limit: flags.Limit = None,
    model: flags.Model = None,
    strategies: flags.Strategies = None,
    system: Annotated[
        str | None, option("--system NAME=STRATEGY:MODEL", "One more system.")
    ] = None,
    allow_missing: AllowMissing = False,
    offline: flags.Offline = False,
    engine: flags.Engine = None,
    changes: flags.Set = None,
    as_json: flags.Json = False,
) -> None:
    """Answer instructions, have them judged, and report.

    Greedy, one prompt at a time, all systems in turn. Answers and raw replies are kept in the
    folder; a stopped run is continued. Without a judge only speed is reported.
    """
    from pasta_lm.measure import alpaca as measure
    from pasta_lm.measure.alpaca_report import alpaca_report

    if offline:
        run = measure.open_run(out)
    else:
        values = {
            "limit": limit, "model": model, "strategies": split_names(strategies), "system": system,
            "servers.addresses": engine,
        }  # fmt: skip
        settings = read_settings(measure.AlpacaSettings, recipe, values, changes)
        with interruptible(), bars() as show:
            run = measure.evaluate_alpaca(out, settings, show, say)
    report = alpaca_report(run, allow_missing=allow_missing)
    print_report(report, report.write(out), as_json=as_json)
    if _say_refused(report.to_dict()["systems"], "; run again, or"):
        raise typer.Exit(FAILED)


def _say_refused(systems: Mapping[str, Mapping[str, Any]], otherwise: str) -> bool:
    reasons = {name: own["refused"] for name, own in systems.items() if "refused" in own}
    for name, reason in reasons.items():
        say(f"{name}: {reason}{otherwise} --allow-missing gives both rates")
    return bool(reasons)


def lc_winrate(
    annotations: Annotated[Path, option("--annotations FILE.jsonl[.gz]", "Stored judgements.")],
    difficulty: Annotated[Path, option("--difficulty CSV", "Difficulty by instruction.")],
    gamed: Annotated[Path, option("--gamed CSV", "Judgements of the gamed reference.")],
    allow_missing: AllowMissing = False,
    as_json: flags.Json = False,
) -> None:
    """Compute AlpacaEval's win rates from stored judgements.

    Nothing is asked of a judge. Where verdicts are missing, a model has no headline and the exit
    code is 1.
    """
    from pasta_lm.measure.win_rates import rates_table, read_calibration, stored_rates

    calibration = read_calibration(difficulty, gamed)
    result = stored_rates(annotations, calibration, allow_missing=allow_missing)
    print_json(result) if as_json else print_tables([rates_table(result)])
    for name, figures in result.items():
        if figures.get("n_absent"):
            say(f"{name}: {figures['n_absent']} instructions have no row")
    if _say_refused(result, ";"):
        raise typer.Exit(FAILED)


def instructions(
    out: flags.Out, recipe: flags.Recipe = None, model: flags.Model = None,
    baseline: Baseline = None, limit: flags.Limit = None, offline: flags.Offline = False,
    engine: flags.Engine = None, changes: flags.Set = None, as_json: flags.Json = False,
) -> None:  # fmt: skip
    """Compare a taught model with its baseline on instructions.

    Answers AlpacaEval's and IFEval's prompts (sets.alpaca, sets.ifeval) and held-out prompts of the
    corpora; measures speed, structure, text, IFEval's checks and the cost of not seeing. A stopped
    run is continued; records hold ids and answers, no prompts.
    """
    from pasta_lm.measure import instructions as measure

    if not offline:
        values = {"model": model, "baseline": baseline, "limit": limit}
        values["servers.addresses"] = engine
        settings = read_settings(measure.InstructionSettings, recipe, values, changes)
        with interruptible(), bars() as show:
            measure.evaluate_instructions(out, settings, show)
    report = measure.instructions_report(out)
    print_report(report, report.write(out), as_json=as_json)


def ifeval(
    prompts: Annotated[Path, option("--prompts FILE", "IFEval's prompts.")],
    out: flags.Out, model: flags.Model = None, baseline: Baseline = None, limit: flags.Limit = None,
    engine: flags.Engine = None, changes: flags.Set = None, as_json: flags.Json = False,
) -> None:  # fmt: skip
    """Check which of IFEval's instructions models follow.

    The same as `instructions` with this set alone.
    """
    alone = [f"sets.ifeval={json.dumps(str(prompts))}", "num_timed=0", "num_unmasked=0"]
    changes = [*alone, *(changes or [])]
    instructions(out, None, model, baseline, limit, False, engine, changes, as_json)


def cost(
    references: Annotated[Path, typer.Argument(metavar="ANSWERS.jsonl", help="Annotated answers.")],
    ids: Annotated[Path | None, option("--ids FILE", "Read only the rows that it lists.")] = None,
    model: flags.Model = None,
    baseline: Baseline = None,
    untaught: Annotated[str | None, option("--untaught DIR|HF_ID", "The untrained model.")] = None,
    records: Annotated[Path | None, option("--records FILE", "Write a row per answer.")] = None,
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    as_json: flags.Json = False,
) -> None:
    """Measure the cost of not seeing other threads.

    Reads given answers with teacher forcing: the taught model under PASTA's visibility and
    sequentially, its sequential baseline, and the untaught model. Nats per token of the text,
    paired by answer.
    """
    from pasta_lm.measure.cost import evaluate_cost

    taught = model or BUILTIN
    names = taught, baseline or baseline_of(taught), untaught
    report = evaluate_cost(references, ids, names, dtype, device, records)
    print_report(report, as_json=as_json)


def speed(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE", help="Records of answers, or folders of alpaca runs."),
    ],
    baseline: Annotated[
        str, option("--baseline NAME", "The system with which the others are compared.")
    ] = "sequential",
    as_json: flags.Json = False,
) -> None:
    """Compute the paper's table of speed.

    Nothing is decoded. Geometric means are the headline; figures have 95 % bootstrap intervals
    over prompts. Answers of other lengths than the baseline's, or cut ones, have tokens per second
    instead of speedups.
    """
    from pasta_lm.measure.speed import speed_report

    print_report(speed_report(sources, baseline), as_json=as_json)
