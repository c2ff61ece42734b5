"""``pasta evaluate``, ``replay`` and ``bench``: quality and speed, by ``pasta_lm.measure``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pasta_lm.cli import flags, terminal
from pasta_lm.cli.flags import ENVIRONMENT, option, require_one_of
from pasta_lm.cli.terminal import bars, interruptible, print_json, say
from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.learn.data.annotated import Record, read_annotated
from pasta_lm.models.names import BUILTIN, require_model
from pasta_lm.recipe import check_not_ignored, read_recipe
from pasta_lm.strategies.model import baseline_of

if TYPE_CHECKING:
    from pasta_lm.engines.local.loading import LoadedModel
    from pasta_lm.measure.table import Figures, Report, Table

T = TypeVar("T")

AllowMissing = Annotated[
    bool, option("--allow-missing", "Give win rates although verdicts are missing: two each.")
]
Baseline = Annotated[str | None, option("--baseline DIR|HF_ID", "The sequential baseline.")]
Rows = Annotated[str, option("--rows T,T", "Threads of a response, one token each a pass.")]
Requests = Annotated[str | None, option("--requests N,N", "Latency with so many requests at once.")]
ROWS = "1,2,4,8,16"


def split_names(listed: str | None) -> list[str] | None:
    return None if listed is None else [name.strip() for name in listed.split(",")]


def numbers(flag: str, value: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in (value or "").split(",") if value)
    except ValueError:
        raise UsageError(f"{flag} is {value!r}, no list of numbers", hint="1,2,4") from None


def read_settings(
    kind: type[T], recipe: Path | None, values: Mapping[str, object], changes: Sequence[str] | None
) -> T:
    """Return a recipe's settings: ``--set`` over flags, environment, file and defaults."""
    machine = {key: os.environ.get(ENVIRONMENT[f"--{key}"]) or None for key in ("dtype", "device")}
    flags = (machine | dict(values)).items()
    lines = [f"{key}={json.dumps(value)}" for key, value in flags if value is not None]
    return read_recipe(recipe, kind, [*lines, *(changes or [])])


def _only_report(offline: bool, beside: Mapping[str, object]) -> None:
    """Refuse settings beside ``--offline``; a model may be the environment's."""
    for flag, value in beside.items():
        check_not_ignored(flag, offline and value, "--offline only reports")


def print_tables(tables: Iterable[Table]) -> None:
    for number, table in enumerate(tables):
        if number:
            typer.echo()
        if table.title:
            typer.echo(table.title)
        terminal.print_table(table.header, table.texts())
        if table.note:
            typer.echo(f"\n{table.note}")


def print_report(report: Report, page: Path | None = None, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
        return
    print_tables(report.tables())
    typer.echo("".join(f"\n{fact}" for fact in report.facts))
    if page is not None:
        typer.echo(f"{page} has all figures")


def alpaca(
    out: flags.Out, recipe: flags.Recipe = None, limit: flags.Limit = None,
    model: flags.Model = None, strategies: flags.Strategies = None,
    system: Annotated[
        str | None, option("--system NAME=STRATEGY:MODEL", "One more system.")
    ] = None,
    write_pairs: flags.Pairs = None, allow_missing: AllowMissing = False,
    offline: flags.Offline = False, engine: flags.Engine = None, changes: flags.Set = None,
    as_json: flags.Json = False,
) -> None:  # fmt: skip
    """Answer instructions, have them judged, and report.

    Greedy, one prompt at a time, all systems in turn; a stopped run is continued. A model judges,
    or judge.file, verdicts on what --write-pairs wrote; without a judge only speed is reported.
    """
    from pasta_lm.measure import alpaca

    beside: dict[str, object] = {"--limit": limit, "--strategies": strategies, "--system": system}
    beside |= {"RECIPE": recipe, "--engine": engine, "--set": changes, "--write-pairs": write_pairs}
    _only_report(offline, beside)
    if not offline:
        values = {
            "limit": limit, "model": model, "strategies": split_names(strategies), "system": system,
            "servers.addresses": engine,
        }  # fmt: skip
        settings = read_settings(alpaca.AlpacaSettings, recipe, values, changes)
        with interruptible(), bars() as show:
            written = alpaca.evaluate_alpaca(out, settings, show, say, write_pairs)
        if written is not None:
            say(f"its verdicts go to {settings.judge.file}; then go on without --write-pairs")
            return typer.echo(str(written))
    report = alpaca.alpaca_report(*alpaca.open_run(out), allow_missing=allow_missing)
    print_report(report, report.write(out), as_json=as_json)
    _fail_if_refused(report.to_dict()["systems"], "; run again (a reader: --write-pairs FILE), or")


def _fail_if_refused(systems: Mapping[str, Figures], otherwise: str) -> None:
    reasons = {name: item["refused"] for name, item in systems.items() if "refused" in item}
    for name, reason in reasons.items():
        say(f"the answers of {name} have {reason}{otherwise} --allow-missing gives both rates")
    if reasons:
        raise typer.Exit(terminal.FAILED)


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
    _fail_if_refused(result, ";")


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

    beside: dict[str, object] = {"--limit": limit, "--baseline": baseline, "--engine": engine}
    _only_report(offline, beside | {"RECIPE": recipe, "--set": changes})
    if not offline:
        values = {"model": model, "baseline": baseline, "limit": limit, "servers.addresses": engine}
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
    model: flags.Model = None, baseline: Baseline = None,
    untaught: Annotated[str | None, option("--untaught DIR|HF_ID", "The untrained model.")] = None,
    dtype: flags.Dtype = None, device: flags.Device = None, as_json: flags.Json = False,
) -> None:  # fmt: skip
    """Measure the cost of not seeing other threads.

    Reads given answers with teacher forcing: the taught model under PASTA's visibility and
    sequentially, its sequential baseline, and the untaught model. Nats per token of the text,
    paired by answer.
    """
    from pasta_lm.measure import answering, cost, table

    taught = model or BUILTIN
    names = taught, baseline or baseline_of(taught), untaught
    answers = cost.read_references(references, ids)
    answering.require_models(names)
    rows = list(cost.measure(answers, cost.reading_systems(names, dtype, device)))
    head = {"references": str(references), "taught": taught, "baseline": names[1]}
    report = table.Report("The cost of not seeing", ["intervals: 95 %, bootstrap"])
    report.add((), head | {"untaught": untaught})
    cost.add_cost(report, rows)
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


# --- speed of an engine


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl[.gz]", help="Annotated answers.")],
    model: Annotated[str | None, option("--model -m MODEL", flags.MODELS)] = None,
    random: Annotated[
        Path | None,
        option("--random ARCH.json", "Random weights of this architecture instead of a model."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        option("--tokenizer DIR", "For --random. Default: one trained on the file's answers."),
    ] = None,
    dtype: flags.Dtype = None, device: flags.Device = None, threads: flags.Threads = None,
    positions: Annotated[
        str | None,
        option("--positions STRATEGY", "predict, continue or oracle. Default: as trained."),
    ] = None,
    max_threads: flags.MaxThreads = None, limit: flags.Limit = None, json: flags.Json = False,
) -> None:  # fmt: skip
    """Decode given answers sequentially and in parallel.

    Compares the speed of both. The tokens are forced, but the work is real: every step computes
    logits and samples a token for each live thread. Lines that cannot be read are reported and
    left out, and the exit code is then 3.
    """
    require_one_of("--positions", positions, list(PositionStrategy))
    if (model is None) == (random is None):
        raise UsageError("give either --model or --random", hint="--model builtin, for example")
    if tokenizer is not None and random is None:
        raise UsageError("--tokenizer belongs to --random", hint="a model has its own tokenizer")
    answers, num_invalid = _read(file, limit)
    if random is None:
        loaded = _load(model or "", dtype, device)
    else:
        loaded = _random_model(random, tokenizer, answers, dtype, device)
    from pasta_lm.measure import replay as measure

    with bars() as show:
        result = measure.replay(
            answers, loaded,
            positions=PositionStrategy(positions) if positions else loaded.positions,
            max_threads=max_threads, progress=partial(show, "answers"),
        )  # fmt: skip
    report = result.report()
    report.add((), {"num_invalid_lines": num_invalid})
    print_json(report.to_dict(has_bounds=False)) if json else print_report(report, as_json=False)
    for note in result.notes:
        say(note)
    if result.was_interrupted:
        raise typer.Exit(terminal.INTERRUPTED)
    if num_invalid:
        raise typer.Exit(terminal.INVALID)


def _read(file: Path, limit: int | None) -> tuple[list[Record], int]:
    answers, problems = read_annotated(file, limit)
    for problem in problems if answers else problems[:1]:
        typer.echo(f"{file}:{problem.line}: {problem.reason}", err=True)
    if not answers:
        hint = "each line is a JSON object with 'response' or 'annotated'"
        raise InputError(f"{file} has no annotated answer that can be read", hint=hint)
    return answers, len(problems)


def _load(model: str, dtype: str | None, device: str | None) -> LoadedModel:
    require_model(model)
    with terminal.status(f"loading {model}"):
        from pasta_lm.engines.local.loading import load

        return load(model, dtype=dtype, device=device)


def _random_model(
    file: Path, tokenizer: Path | None, answers: list[Record], dtype: str | None, device: str | None
) -> LoadedModel:
    from pasta_lm.engines.devices import usable_device
    from pasta_lm.learn import random_model as made

    dtype = None if dtype == "auto" else dtype
    require_one_of("--dtype", dtype, made.DTYPES)
    texts = (answer.document.plain_text for answer in answers)
    return made.random_model(
        made.read_architecture(file),
        made.load_tokenizer(tokenizer) if tokenizer else made.train_tokenizer(texts),
        name=file.stem, dtype=made.DTYPES[dtype or "float32"], device=str(usable_device(device)),
    )  # fmt: skip


def bench(
    model: flags.Model = None, dtype: flags.Dtype = None, device: flags.Device = None,
    threads: flags.Threads = 1, rows: Rows = ROWS, requests: Requests = None,
    as_json: flags.Json = False,
) -> None:  # fmt: skip
    """Measure the speed of an engine.

    A pass feeds one token of each thread; figures are medians of rounds that take turns. With
    --requests, all requests arrive at once and decode the same text, sequentially and in parallel.
    """
    counts = numbers("--rows", rows), numbers("--requests", requests)
    require_model(model or BUILTIN)
    from pasta_lm.measure import bench as measure

    settings = measure.BenchSettings(rows=counts[0], requests=counts[1])
    loaded = _load(model or BUILTIN, dtype, device)
    with bars() as show:
        figures = measure.bench(loaded, settings, partial(show, "rounds"))
    print_json(figures) if as_json else print_bench(figures, measure.tables(figures))


def print_bench(figures: Figures, tables: Iterable[Table]) -> None:
    print_tables(tables)
    machine = figures["machine"]
    typer.echo(
        f"\n{figures['kind']}: {figures['model']}, {figures['dtype']}; {machine['cpu']}, "
        f"{machine['threads']} thread(s), GPU {machine['gpu']}, torch {machine['torch']}"
    )
