"""``pasta-lab fields``: JSON mode against parts, on documents with known fields."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lab.cli.figures import interval, print_figures
from pasta_lm.cli.flags import Dtype, Json, Model, option, require_one_of
from pasta_lm.cli.run import load_model
from pasta_lm.cli.terminal import interruptible, print_table, silence_libraries

SETS = ("documents", "curve", "arrays")
COLUMNS = ("accuracy", "baseline_accuracy", "difference", "times_fewer_steps", "times_faster")


def fields(
    records: Annotated[Path, typer.Argument(metavar="RECORDS.jsonl", help="Decoded documents.")],
    model: Model = None,
    dtype: Dtype = "bfloat16",
    documents: Annotated[int, option("--documents N", "Documents for accuracy.", min=1)] = 200,
    which: Annotated[str, option("--set NAME", "documents, curve or arrays.")] = "documents",
    at_once: Annotated[int, option("--at-once N", "1 keeps the clock.", min=1)] = 1,
    seed: Annotated[int, option("--seed N", "Seed of the documents.")] = 0,
    minutes: Annotated[float, option("--minutes M", "Time to decode; 0 reads the records.")] = 0,
    server: Annotated[
        str | None, option("--server URL", "llama.cpp's server with the same weights, too.")
    ] = None,
    compared: Annotated[
        str | None, option("--method NAME", "own, given, or a method of the server.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Decode documents in JSON mode and as parts, and compare them.

    Records are appended; what is decoded already is not decoded again.
    """
    from pasta_lab.fields import measure
    from pasta_lm.journal import Journal, read_rows

    require_one_of("--set", which, SETS)
    if minutes:
        silence_libraries()
        chosen = measure.document_sets(documents, seed)[which]
        methods = measure.METHODS
        if server is not None:
            methods += measure.SERVER, measure.SERVER_AT_ONCE
        loaded, end_s = load_model(model, dtype=dtype, device=None), time.monotonic() + 60 * minutes
        with interruptible():
            measure.decode(loaded, chosen, Journal(records), at_once, end_s, methods, server)
    found = measure.figures(read_rows(records), compared or measure.OWN)
    print_figures(found, _print, as_json=as_json)


def _print(found: dict[str, Any]) -> None:
    rows = [
        [name, str(row["num_documents"]), *(interval(row[key], 2) for key in COLUMNS)]
        for name, row in {**found["curve"], "all": found}.items()
    ]
    print_table(["fields", "documents", *(name.replace("_", " ") for name in COLUMNS)], rows)
    typer.echo(f"\n{found['method']} against {found['baseline']}; 95 % bootstrap intervals")
