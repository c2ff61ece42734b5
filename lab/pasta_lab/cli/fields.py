"""``pasta-lab fields``: JSON mode against parts, on documents with known fields; schemas of others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lab.cli.figures import interval, print_figures
from pasta_lm.cli.flags import Dtype, Json, Model, option, require_one_of
from pasta_lm.cli.terminal import interruptible, print_table, silence_libraries
from pasta_lm.models.names import BUILTIN

POOL_TOKENS = 40_960
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
    from pasta_lm.strategies.model import Pasta

    require_one_of("--set", which, SETS)
    if minutes:
        silence_libraries()
        chosen = measure.document_sets(documents, seed)[which]
        methods = measure.METHODS
        if server is not None:
            methods += measure.SERVER, measure.SERVER_AT_ONCE
        loaded = Pasta.from_pretrained(model or BUILTIN, dtype=dtype, pool_tokens=POOL_TOKENS)
        end_s = time.monotonic() + 60 * minutes
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


def schemas(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Schemas, a file each.")],
    num: Annotated[int, option("--schemas N", "Different schemas that are drawn.", min=1)] = 2000,
    seed: Annotated[int, option("--seed N", "Seed of the draw and of the model.")] = 0,
    as_json: Json = False,
) -> None:
    """Compile schemas, and validate what a random model writes under each.

    Of the first folder all are taken (the public test suite), of the others as many as are missing.
    """
    silence_libraries()
    from pasta_lab.fields.schemas import SchemaCheck, drawn, read_schemas

    first, *others = [[*read_schemas(folder)] for folder in folders]
    chosen = drawn(first, num, seed)
    chosen += drawn([entry for some in others for entry in some], max(0, num - len(chosen)), seed)
    report = SchemaCheck(chosen, seed).run(chosen)
    print_figures(vars(report), _print_report, as_json=as_json)


def _print_report(found: dict[str, Any]) -> None:
    typer.echo(f"{found['num_schemas']} schemas, compiled in {found['max_compile_s']:.2f} s at most")
    for title in ("counts", "refused"):
        rows = sorted(found[title].items(), key=lambda row: (-row[1], row[0]))
        typer.echo()
        print_table([title, ""], [[name, str(count)] for name, count in rows])
    typer.echo("\n" + "\n".join(found["faults"] or ["nothing is invalid"]))
