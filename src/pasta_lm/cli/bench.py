"""``pasta bench``: time of a pass by its rows, sequential speed, latency at so many requests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from pasta_lm.cli.flags import Device, Dtype, Json, Model, Threads, option
from pasta_lm.cli.terminal import bars, number, print_json, print_table
from pasta_lm.errors import UsageError
from pasta_lm.models.names import BUILTIN

Rows = Annotated[str, option("--rows T,T", "Threads of a response, one token each a pass.")]
Requests = Annotated[str | None, option("--requests N,N", "Latency with so many requests at once.")]
ROWS = "1,2,4,8,16"


def bench(
    model: Model = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = 1,
    rows: Rows = ROWS,
    requests: Requests = None,
    as_json: Json = False,
) -> None:
    """Measure the speed of an engine.

    A pass feeds one token of each thread; figures are medians of rounds that take turns. With
    --requests, all requests arrive at once and decode the same text, sequentially and in parallel.
    """
    counts = numbers("--rows", rows), numbers("--requests", requests)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it once, when it is imported
    from pasta_lm.engines.local.loading import load
    from pasta_lm.measure import bench as measure

    settings = measure.BenchSettings(rows=counts[0], requests=counts[1])
    with bars() as show:
        loaded = load(model or BUILTIN, dtype=dtype, device=device)
        figures = measure.bench(loaded, settings, partial(show, "rounds"))
    print_json(figures) if as_json else print_bench(figures)


def numbers(flag: str, value: str | None) -> tuple[int, ...]:
    """Parse a list of numbers; anything else is a ``UsageError``."""
    try:
        return tuple(int(part) for part in (value or "").split(",") if value)
    except ValueError:
        raise UsageError(f"{flag} is {value!r}, no list of numbers", hint="1,2,4") from None


def print_bench(figures: Mapping[str, Any]) -> None:
    steps = [[rows, number(ms)] for rows, ms in figures["step_ms"].items()]
    print_table(["rows", "ms a pass"], steps)
    typer.echo()
    speed = ["tokens/s", number(figures["sequential_tokens_per_s"], 1)]
    share = ["share of the bandwidth limit", number(figures["bandwidth_share"])]
    print_table(["sequential", ""], [speed, share])
    if load := figures.get("load"):
        typer.echo()
        rows = [[count, *map(number, latencies.values())] for count, latencies in load.items()]
        print_table(["requests: median latency, s", "sequential", "pasta"], rows)
    machine = figures["machine"]
    typer.echo(
        f"\n{figures['kind']}: {figures['model']}, {figures['dtype']}; {machine['cpu']}, "
        f"{machine['threads']} thread(s), GPU {machine['gpu']}, torch {machine['torch']}"
    )
