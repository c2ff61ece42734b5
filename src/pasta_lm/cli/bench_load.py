"""``pasta bench load``: throughput and latency of one engine under many requests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lm.cli.bench_engine import NOTHING, numbers
from pasta_lm.cli.flags import Device, Dtype, Json, MaxThreads, Model, option
from pasta_lm.cli.tables import number, print_json, print_table

POOL_TOKENS = 65_536
PEER = "continuous-batching"
SPEEDUPS = {  # rows of the table, and where the speedup of each stands
    "sequential": None,
    "pasta": "speedup",
    "pasta, when it pays": "speedup_when_it_pays",
    PEER: None,
}


def load(
    answers: Annotated[
        Path, typer.Argument(metavar="ANSWERS.jsonl[.gz]", help="Annotated answers to decode.")
    ],
    model: Model = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Annotated[int, option("--threads", metavar="N", min=1, help="CPU threads.")] = 1,
    requests: Annotated[
        str, option("--requests", metavar="N,N", help="Requests of each load.")
    ] = "1,4,16,64",
    rate: Annotated[
        float, option("--rate", metavar="R", help="Requests a second; inf: all at once.")
    ] = inf,
    max_threads: MaxThreads = None,
    pool_tokens: Annotated[int | None, typer.Option("--pool-tokens", hidden=True)] = None,
    cache_memory: Annotated[
        str | None,
        option(
            "--cache-memory",
            metavar="SIZE",
            help="The cache, such as 2GiB or 40% of what is free. Default: 65,536 entries.",
        ),
    ] = None,
    peers: Annotated[
        str,
        option("--peers", metavar="NAMES", help="continuous-batching (of transformers), or none."),
    ] = PEER,
    json: Json = False,
) -> None:
    """Measure an engine under load, sequentially and in parallel.

    The answers of two blocks or more are forced, so both strategies decode the same text. With a
    rate, requests arrive with exponential gaps; latency counts from a request's arrival.
    """
    from pasta_lm.cli.terminal import bars, silence_libraries
    from pasta_lm.measure.engine_load import LoadBenchmark, measure_load
    from pasta_lm.measure.engine_speed import read_some
    from pasta_lm.models.shipped import BUILTIN

    settings = LoadBenchmark(
        requests=numbers("--requests", requests),
        rate=rate,
        pool_tokens=pool_tokens or POOL_TOKENS,
        max_threads=max_threads,
        peers=tuple(peers.split(",")) if peers != NOTHING else (),
    )
    records = read_some(answers)
    silence_libraries()
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it once, when it is imported
    from pasta_lm.engines.local.loading import load as load_model
    from pasta_lm.engines.local.memory import pool_slots

    loaded = load_model(model or BUILTIN, dtype=dtype, device=device)
    if cache_memory is not None:
        settings = replace(settings, pool_tokens=pool_slots(cache_memory, loaded))
    with bars() as progress:
        found = measure_load(
            loaded, records, settings, lambda done, total: progress("runs", done, total)
        )
    found["model"] = model or BUILTIN
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: Mapping[str, Any]) -> None:
    rows = []
    for one in found["loads"]:
        for name, key in SPEEDUPS.items():
            figures = one.get(name)
            if figures is None:
                continue
            latency = [number(figures["latency_s"][key]) for key in ("p50", "p90", "p99")]
            speedup = number(one[key]) if key else ""
            rate = number(figures["tokens_per_s"], 1)
            rows.append([f"{one['requests']} {name}", rate, *latency, speedup])
    header = ["requests", "tokens/s", "p50, s", "p90, s", "p99, s", "speedup of p50"]
    print_table(header, rows)
    machine = found["machine"]
    typer.echo(
        f"\n{found['kind']}: {found['model']}, {found['dtype']} on {found['device']}; "
        f"{machine['cpu']}, {machine['threads']} thread(s)"
    )
