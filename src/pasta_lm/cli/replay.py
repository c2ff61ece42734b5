"""Decode annotated answers with forced tokens: what an engine makes of real structure."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lm.cli.flags import (
    Device,
    Dtype,
    Json,
    MaxThreads,
    Model,
    Positions,
    option,
    require_one_of,
)

if TYPE_CHECKING:
    from pasta_lm.engines.torch.loading import LoadedModel
    from pasta_lm.strategies.annotated import AnnotatedAnswer
    from pasta_lm.strategies.replay import Progress

INVALID = 3
INTERRUPTED = 130
FIGURES = (
    ("num_threads_mean", "threads, mean", ""),
    ("theoretical_speedup", "theoretical speedup", "x"),
    ("realised_speedup", "realised speedup", "x"),
    ("efficiency", "efficiency", ""),
    ("parallelism", "parallelism", ""),
    ("sequential_tokens_per_s", "sequential tokens/s", ""),
    ("parallel_tokens_per_s", "parallel tokens/s", ""),
)


def replay(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.jsonl[.gz]", help="Annotated answers, one object a line."),
    ],
    model: Model = None,
    random: Annotated[
        Path | None,
        option(
            "--random",
            metavar="ARCH.json",
            help="Random weights of this architecture instead of a model.",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        option(
            "--tokenizer",
            metavar="DIR",
            help="For --random; trained on the file's own answers if not given.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        option("--limit", metavar="N", min=1, help="Only the first N answers."),
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Annotated[
        int | None,
        option("--threads", metavar="N", min=1, help="CPU threads of torch."),
    ] = None,
    max_threads: MaxThreads = None,
    positions: Positions = None,
    strategy: Annotated[
        str, option("--strategy", metavar="NAME", help="Whose programs: pasta, apar or sot.")
    ] = "pasta",
    json: Json = False,
) -> None:
    """Decode given answers, sequentially and in parallel.

    The text is forced, the work is real: logits and a sampled token for every live thread. Lines
    that cannot be read are named and left out; then the exit code is 3.
    """
    from pasta_lm.cli.terminal import silence_libraries
    from pasta_lm.errors import InputError, UsageError
    from pasta_lm.interpreter.positions import PositionStrategy
    from pasta_lm.strategies.annotated import read_annotated
    from pasta_lm.strategies.replay import REPLAYED
    from pasta_lm.strategies.replay import replay as decode

    require_one_of("--strategy", strategy, REPLAYED)
    require_one_of("--positions", positions, [one.value for one in PositionStrategy])
    if (model is None) == (random is None):
        raise UsageError(
            "name what decodes: either --model or --random", hint="pasta replay --help"
        )
    if tokenizer is not None and random is None:
        raise UsageError("--tokenizer belongs to --random", hint="a model brings its own")
    answers, problems = read_annotated(file, limit)
    for problem in problems:
        typer.echo(f"{file}:{problem.line}: {problem.reason}", err=True)
    if not answers:
        raise InputError(f"{file} holds no annotated answer that can be read")
    silence_libraries()
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it once, when it is imported
    loaded = _load(model, random, tokenizer, answers, dtype=dtype, device=device)
    with _progress() as progress:
        report = decode(
            answers,
            loaded,
            positions=PositionStrategy(positions) if positions else loaded.positions,
            strategy=strategy,
            max_threads=max_threads,
            progress=progress,
        )
    _print({**report.to_dict(), "num_invalid_lines": len(problems)}, as_json=json)
    for name, reason in report.skipped:
        typer.echo(f"pasta: answer {name} was left out: {reason}", err=True)
    if report.was_interrupted:
        typer.echo("pasta: interrupted; the figures are of the answers that were done", err=True)
        raise typer.Exit(INTERRUPTED)
    if problems:
        raise typer.Exit(INVALID)


def _load(
    model: str | None,
    random: Path | None,
    tokenizer: Path | None,
    answers: list[AnnotatedAnswer],
    *,
    dtype: str | None,
    device: str | None,
) -> LoadedModel:
    """Load the model, or make one with random weights."""
    from pasta_lm.engines.torch.loading import DTYPES, load, read_architecture, usable_device

    if random is None:
        assert model is not None
        return load(model, dtype=dtype, device=device)
    from pasta_lm.engines.torch.random_model import load_tokenizer, random_model, train_tokenizer

    require_one_of("--dtype", dtype, DTYPES)
    config = read_architecture(random)
    if tokenizer is not None:
        pieces = load_tokenizer(tokenizer)
    else:
        pieces = train_tokenizer(answer.document.plain_text for answer in answers)
    return random_model(
        config,
        pieces,
        name=random.stem,
        dtype=DTYPES[dtype or "float32"],
        device=str(usable_device(device)),
    )


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """Give what shows progress on standard error, where that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from pasta_lm.cli.terminal import console

    if not sys.stderr.isatty():
        yield None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task("answers", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(report: dict[str, Any], *, as_json: bool) -> None:
    from json import dumps

    from pasta_lm.cli.terminal import console

    if as_json:
        typer.echo(dumps(report, ensure_ascii=False))
        return
    out = console(sys.stdout)
    num_multi = report["multi_block"]["num_documents"]
    out.print(f"{'':<26}{'all answers':>14}{'two blocks or more':>22}")
    out.print(f"{'answers':<26}{report['num_documents']:>14}{num_multi:>22}")
    for key, name, unit in FIGURES:
        both = (_figure(part[key], unit) for part in (report, report["multi_block"]))
        out.print("{:<26}{:>14}{:>22}".format(name, *both))
    out.print(f"\n{_setting(report)}", soft_wrap=True)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}{unit}" if value < 100 else f"{value:.0f}{unit}"


def _setting(report: dict[str, Any]) -> str:
    """Return what every figure needs beside it: its kind, the weights, the hardware."""
    weights = "random weights" if report["weights"] == "random-weights" else "given weights"
    skipped = f"; {report['num_skipped']} answers did not fit" if report["num_skipped"] else ""
    from pasta_lm.engines.torch.diagnosis import devices

    device = next((one for one in devices() if one.startswith(report["device"])), report["device"])
    return (
        f"{report['kind']}, {weights}: {report['model']}, {report['dtype']} on {device}, "
        f"positions {report['positions']}{skipped}"
    )
