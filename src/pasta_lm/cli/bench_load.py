"""``pasta bench load``: throughput and latency of one engine under many requests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lm.cli.bench_engine import numbers
from pasta_lm.cli.flags import Device, Dtype, Json, MaxThreads, Model, option
from pasta_lm.cli.tables import number, print_json, print_table


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
    pool_tokens: Annotated[
        int, option("--pool-tokens", metavar="N", min=1, help="Cache entries of the engine.")
    ] = 65_536,
    cache_memory: Annotated[
        str | None,
        option(
            "--cache-memory",
            metavar="SIZE",
            help="The cache as memory, such as 2GiB, or 40% of what is free.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure an engine under load, sequentially and in parallel.

    The answers of two blocks or more are forced, so both strategies decode the same text. With a
    rate, requests arrive with exponential gaps; latency counts from a request's arrival.
    """
    from pasta_lm.cli.terminal import bars, silence_libraries
    from pasta_lm.engines.annotated import read_annotated
    from pasta_lm.engines.builtin import BUILTIN
    from pasta_lm.errors import InputError
    from pasta_lm.evaluate.engine_load import LoadBenchmark, measure_load

    settings = LoadBenchmark(
        requests=numbers("--requests", requests),
        rate=rate,
        pool_tokens=pool_tokens,
        max_threads=max_threads,
    )
    records, problems = read_annotated(answers)
    if not records:
        reason = f": line {problems[0].line}: {problems[0].reason}" if problems else ""
        raise InputError(f"{answers} has no annotated answer that can be read{reason}")
    silence_libraries()
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it once, when it is imported
    from pasta_lm.engines.torch.loading import load as load_model
    from pasta_lm.engines.torch.memory import pool_slots

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
        for name in ("sequential", "pasta", "pasta, when it pays"):
            figures = one[name]
            latency = [number(figures["latency_s"][key]) for key in ("p50", "p90", "p99")]
            speedup = {"sequential": "", "pasta": number(one["speedup"])}.get(
                name, number(one["speedup_when_it_pays"])
            )
            rate = number(figures["tokens_per_s"], 1)
            rows.append([f"{one['requests']} {name}", rate, *latency, speedup])
    header = ["requests", "tokens/s", "p50, s", "p90, s", "p99, s", "speedup of p50"]
    print_table(header, rows)
    machine = found["machine"]
    typer.echo(
        f"\n{found['kind']}: {found['model']}, {found['dtype']} on {found['device']}; "
        f"{machine['cpu']}, {machine['threads']} thread(s)"
    )
