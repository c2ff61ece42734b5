"""``pasta replay``: decode annotated answers with forced tokens, and report the speedups."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli import flags, terminal
from pasta_lm.cli.flags import option, require_one_of
from pasta_lm.errors import InputError, UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind
from pasta_lm.learn.data.annotated import Record, read_annotated
from pasta_lm.measure.replay import NEW_TAG_ROWS, ReplayReport, figures_of
from pasta_lm.measure.replay import replay as decode

if TYPE_CHECKING:
    from pasta_lm.engines.local.loading import LoadedModel

LABELS = {"num_documents": "answers", "num_threads_mean": "threads, mean"}


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
        option("--positions STRATEGY", "predict, continue, rotate or oracle. Default: as trained."),
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
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it when it is imported
    from pasta_lm.engines.local import loading

    with terminal.status(f"loading {model or random}"):
        if random is None:
            loaded = loading.load(model or "", dtype=dtype, device=device)
        else:
            place = str(loading.devices.usable_device(device))
            loaded = _random_model(random, tokenizer, answers, dtype, place)
    with terminal.bars() as show:
        report = decode(
            answers,
            loaded,
            positions=PositionStrategy(positions) if positions else loaded.positions,
            max_threads=max_threads,
            progress=partial(show, "answers"),
        )
    if json:
        terminal.print_json({**report.to_dict(), "num_invalid_lines": num_invalid})
    else:
        _print(report)
    if report.conditions["weights"] == NEW_TAG_ROWS:
        terminal.say("this model has no tag pieces; untrained rows are enough for forced text")
    for name, reason in report.skipped:
        terminal.say(f"answer {name} was left out: {reason}")
    if report.was_interrupted:
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
    from pasta_lm.models.load import DTYPES

    dtype = None if dtype == "auto" else dtype
    require_one_of("--dtype", dtype, DTYPES)
    texts = (answer.document.plain_text for answer in answers)
    return made.random_model(
        made.read_architecture(file),
        made.load_tokenizer(tokenizer) if tokenizer else made.train_tokenizer(texts),
        name=file.stem,
        dtype=DTYPES[dtype or "float32"],
        device=device,
    )


def _print(report: ReplayReport) -> None:
    every, several = figures_of(report.pairs), figures_of(report.multi_block)
    rows = []
    for name in every:
        label = LABELS.get(name, name.replace("_per_s", "/s").replace("_", " "))
        digits = 1 if name.endswith("_per_s") else 0 if name == "num_documents" else 2
        unit = "x" if name.endswith("speedup") else ""
        cells = (terminal.number(side[name], digits, unit) for side in (every, several))
        rows.append([label, *cells])
    terminal.print_table(("", "all answers", "two blocks or more"), rows)
    made = report.conditions
    weights = "random" if made["weights"] == Kind.RANDOM_WEIGHTS else "given"
    skipped = f"; {len(report.skipped)} answers did not fit" if report.skipped else ""
    typer.echo(
        f"\nreplayed, {weights} weights: {made['model']}, {made['dtype']} on {report.hardware}, "
        f"positions {made['positions']}{skipped}"
    )
