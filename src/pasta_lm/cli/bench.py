"""``pasta bench``: time of a pass by its rows, sequential speed, latency at so many requests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import Device, Dtype, Json, Model, Threads, option
from pasta_lm.cli.terminal import bars, number, print_json, print_table
from pasta_lm.errors import UsageError

if TYPE_CHECKING:
    from pasta_lm.measure.bench import BenchReport

Rows = Annotated[str, option("--rows T,T", "Threads of a response, one token each a pass.")]
Requests = Annotated[
    str | None, option("--requests N,N", "Also measure latency with so many requests at once.")
]
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
    from pasta_lm.measure.bench import BenchSettings, bench_model

    settings = BenchSettings(rows=counts[0], requests=counts[1])
    with bars() as show:
        times = bench_model(
            model, dtype, device, settings, lambda done, total: show("rounds", done, total)
        )
    print_json(times.to_dict()) if as_json else print_bench(times)


def numbers(flag: str, value: str | None) -> tuple[int, ...]:
    """Parse a list of numbers; anything else is a ``UsageError``."""
    try:
        return tuple(int(part) for part in (value or "").split(",") if value)
    except ValueError:
        raise UsageError(f"{flag} is {value!r}, no list of numbers", hint="1,2,4") from None


def print_bench(times: BenchReport) -> None:
    print_table(["rows", "ms a pass"], [[rows, number(ms)] for rows, ms in times.step_ms.items()])
    typer.echo()
    speed = ["tokens/s", number(times.sequential_tokens_per_s, 1)]
    share = ["share of the bandwidth limit", number(times.bandwidth_share)]
    print_table(["sequential", ""], [speed, share])
    if times.load:
        typer.echo()
        rows = [
            [count, number(item["sequential_s"]), number(item["pasta_s"])]
            for count, item in times.load.items()
        ]
        print_table(["requests: median latency, s", "sequential", "pasta"], rows)
    machine = times.machine
    typer.echo(
        f"\n{times.kind}: {times.model}, {times.dtype}; {machine['cpu']}, "
        f"{machine['threads']} thread(s), GPU {machine['gpu']}, torch {machine['torch']}"
    )
