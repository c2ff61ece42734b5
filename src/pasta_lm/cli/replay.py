"""``pasta replay``: speedups of annotated answers; ``bench``: passes, tokens a second, load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lm.cli import flags, terminal
from pasta_lm.cli.evaluate import print_report, print_tables
from pasta_lm.cli.flags import option, require_one_of
from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.learn.data.annotated import Record, read_annotated
from pasta_lm.models.names import BUILTIN

if TYPE_CHECKING:
    from pasta_lm.engines.local.loading import LoadedModel
    from pasta_lm.measure.table import Table

Rows = Annotated[str, option("--rows T,T", "Threads of a response, one token each a pass.")]
Requests = Annotated[str | None, option("--requests N,N", "Latency with so many requests at once.")]
ROWS = "1,2,4,8,16"


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
    dtype: flags.Dtype = None,
    device: flags.Device = None,
    threads: flags.Threads = None,
    positions: Annotated[
        str | None,
        option("--positions STRATEGY", "predict, continue or oracle. Default: as trained."),
    ] = None,
    max_threads: flags.MaxThreads = None,
    limit: flags.Limit = None,
    json: flags.Json = False,
) -> None:
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
    from pasta_lm.engines.local import loading
    from pasta_lm.measure import replay as measure

    with terminal.status(f"loading {model or random}"):
        if random is None:
            loaded = loading.load(model or "", dtype=dtype, device=device)
        else:
            place = str(loading.devices.usable_device(device))
            loaded = _random_model(random, tokenizer, answers, dtype, place)
    with terminal.bars() as show:
        result = measure.replay(
            answers, loaded,
            positions=PositionStrategy(positions) if positions else loaded.positions,
            max_threads=max_threads, progress=partial(show, "answers"),
        )  # fmt: skip
    report = result.report()
    report.add((), {"num_invalid_lines": num_invalid})
    if json:
        terminal.print_json(report.to_dict(has_bounds=False))
    else:
        print_report(report, as_json=False)
    if result.conditions["weights"] == measure.NEW_TAG_ROWS:
        terminal.say("this model has no tag pieces; untrained rows are enough for forced text")
    for name, reason in result.skipped:
        terminal.say(f"answer {name} was left out: {reason}")
    if result.was_interrupted:
        terminal.say("interrupted; the figures are of the answers that were done")
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


def _random_model(
    file: Path, tokenizer: Path | None, answers: list[Record], dtype: str | None, device: str
) -> LoadedModel:
    from pasta_lm.learn import random_model as made

    dtype = None if dtype == "auto" else dtype
    require_one_of("--dtype", dtype, made.DTYPES)
    texts = (answer.document.plain_text for answer in answers)
    return made.random_model(
        made.read_architecture(file),
        made.load_tokenizer(tokenizer) if tokenizer else made.train_tokenizer(texts),
        name=file.stem, dtype=made.DTYPES[dtype or "float32"], device=device,
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
    from pasta_lm.engines.local.loading import load
    from pasta_lm.measure import bench as measure

    settings = measure.BenchSettings(rows=counts[0], requests=counts[1])
    with terminal.bars() as show:
        loaded = load(model or BUILTIN, dtype=dtype, device=device)
        figures = measure.bench(loaded, settings, partial(show, "rounds"))
    terminal.print_json(figures) if as_json else print_bench(figures, measure.tables(figures))


def numbers(flag: str, value: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in (value or "").split(",") if value)
    except ValueError:
        raise UsageError(f"{flag} is {value!r}, no list of numbers", hint="1,2,4") from None


def print_bench(figures: Mapping[str, Any], tables: Iterable[Table]) -> None:
    """Print the tables of a benchmark, and below them what was measured."""
    print_tables(tables)
    machine = figures["machine"]
    typer.echo(
        f"\n{figures['kind']}: {figures['model']}, {figures['dtype']}; {machine['cpu']}, "
        f"{machine['threads']} thread(s), GPU {machine['gpu']}, torch {machine['torch']}"
    )
