"""``pasta-lab fields`` and ``schemas``: JSON mode against parts; schemas of others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from pasta_lm.cli.flags import Dtype, Model, option, require_one_of
from pasta_lm.cli.terminal import interruptible, print_json, silence_libraries
from pasta_lm.models.names import BUILTIN

POOL_TOKENS = 40_960  # cache entries of all answers that are decoded at once
SETS = ("documents", "curve", "arrays")


def fields(
    records: Annotated[Path, typer.Argument(metavar="RECORDS.jsonl", help="Decoded documents.")],
    model: Model = None,
    dtype: Dtype = "bfloat16",
    minutes: Annotated[float, option("--minutes M", "Time to decode; 0 reads the records.")] = 0,
    which: Annotated[str, option("--set NAME", "documents, curve or arrays.")] = "documents",
    documents: Annotated[int, option("--documents N", "Documents for accuracy.", min=1)] = 200,
    methods: Annotated[str, option("--methods A,B", "With own or given.")] = "sequential,own",
    at_once: Annotated[int, option("--at-once N", "1 keeps the clock.", min=1)] = 1,
    seed: Annotated[int, option("--seed N", "Seed of the documents.")] = 0,
) -> None:
    """Decode documents in JSON mode and as parts, and print the comparison as JSON.

    Records are appended; what is decoded already is not decoded again.
    """
    from pasta_lab.fields import measure
    from pasta_lm.journal import Journal, read_rows
    from pasta_lm.strategies.model import Pasta

    require_one_of("--set", which, SETS)
    named = methods.split(",")
    if minutes:
        silence_libraries()
        chosen = measure.document_sets(documents, seed)[which]
        loaded = Pasta.from_pretrained(model or BUILTIN, dtype=dtype, pool_tokens=POOL_TOKENS)
        end_s, journal = time.monotonic() + 60 * minutes, Journal(records)
        with interruptible():
            measure.decode(loaded, chosen, journal, methods=named, at_once=at_once, end_s=end_s)
    print_json(measure.figures(read_rows(records), named[-1]))


def schemas(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Schemas, a file each.")],
    num: Annotated[int, option("--schemas N", "Different schemas that are drawn.", min=1)] = 2000,
    seed: Annotated[int, option("--seed N", "Seed of the draw and of the model.")] = 0,
) -> None:
    """Compile schemas and validate what a random model writes under each; print counts as JSON.

    Of the first folder all are taken (the public test suite), of the others what is missing.
    """
    silence_libraries()
    from pasta_lab.fields.schemas import SchemaCheck, drawn, read_schemas

    first, *others = map(read_schemas, folders)
    chosen = drawn(first, num, seed)
    more = {name: schema for some in others for name, schema in some.items()}
    chosen = {**chosen, **drawn(more, num - len(chosen), seed)}
    print_json(SchemaCheck(chosen, seed).report())
