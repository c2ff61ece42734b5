"""``pasta-lab fields`` and ``schemas``: JSON mode against parts; schemas of others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from pasta_lm.cli.flags import Model, option, require_one_of
from pasta_lm.cli.terminal import interruptible, print_json, silence_libraries
from pasta_lm.models.names import BUILTIN

POOL_TOKENS = 40_960  # cache entries of all answers that are decoded at once
SETS = ("documents", "curve", "arrays")


def fields(
    records: Annotated[Path, typer.Argument(metavar="RECORDS.jsonl", help="Decoded documents.")],
    model: Model = None,
    minutes: Annotated[float, option("--minutes M", "Time to decode; 0 reads the records.")] = 0,
    which: Annotated[str, option("--set NAME", "documents, curve or arrays.")] = "documents",
    at_once: Annotated[int, option("--at-once N", "1 keeps the clock.", min=1)] = 1,
) -> None:
    """Decode documents in JSON mode and as parts, and print the comparison as JSON.

    In bfloat16. Records are appended; what is decoded already is not decoded again.
    """
    from pasta_lab.fields import measure
    from pasta_lm.journal import Journal, read_rows
    from pasta_lm.strategies.model import Pasta

    require_one_of("--set", which, SETS)
    end_s = time.monotonic() + 60 * minutes
    if minutes:
        silence_libraries()
        chosen, journal = measure.document_sets()[which], Journal(records)
        name = model or BUILTIN
        loaded = Pasta.from_pretrained(name, dtype="bfloat16", pool_tokens=POOL_TOKENS)
        with interruptible():
            measure.decode(loaded, str(name), chosen, journal, at_once=at_once, end_s=end_s)
    print_json(measure.figures(read_rows(records)))


def schemas(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Schemas, a file each.")],
    num: Annotated[int, option("--schemas N", "Different schemas that are drawn.", min=1)] = 2000,
) -> None:
    """Compile schemas and validate what a random model writes under each; print counts as JSON.

    Of the first folder all are taken (the public test suite), of the others what is missing.
    """
    silence_libraries()
    from pasta_lab.fields.schemas import SchemaCheck, drawn, read_schemas

    chosen: dict[str, dict[str, Any]] = {}
    for folder in folders:
        chosen |= drawn(read_schemas(folder), num - len(chosen))
    print_json(SchemaCheck(chosen).report())
