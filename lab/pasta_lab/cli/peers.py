"""``pasta-lab peers``: the benchmark of the engine, with other engines beside it."""

from __future__ import annotations

import os
from functools import partial

from pasta_lm.cli.evaluate import ROWS, Requests, Rows, numbers, print_bench
from pasta_lm.cli.flags import Device, Dtype, Json, Model, Threads
from pasta_lm.cli.terminal import bars, print_json, silence_libraries


def peers(
    model: Model = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Threads = 1,
    rows: Rows = ROWS,
    requests: Requests = None,
    as_json: Json = False,
) -> None:
    """Measure the engine beside generate (transformers) and llama.cpp.

    The same weights in the same rounds. A peer that is not installed is null in the JSON;
    llama.cpp is the package llama-cpp-python.
    """
    counts = numbers("--rows", rows), numbers("--requests", requests)
    silence_libraries()
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch reads it once, when it is imported
    from pasta_lab.peers import bench_with_peers
    from pasta_lm.measure.bench import BenchSettings, tables
    from pasta_lm.measure.table import Table

    settings = BenchSettings(rows=counts[0], requests=counts[1])
    with bars() as show:
        show_rounds = partial(show, "rounds")
        report, beside = bench_with_peers(model, dtype, device, threads or 1, settings, show_rounds)
    if as_json:
        print_json(report | {"peers": beside})
        return
    peer_rows = [
        [f"{name}: {key} {count}", value]
        for name, figures in beside.items()
        for key, table in (figures or {}).items()
        for count, value in (table if isinstance(table, dict) else {"": table}).items()
    ]
    print_bench(report, [*tables(report), Table(["peer", ""], peer_rows, digits=2)])
