"""Evaluate the cost of not seeing: nats of held-out answers with and without PASTA's visibility."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasta_lm.cli.flags import Device, Dtype, Json, Model, option
from pasta_lm.cli.tables import interval, print_json, print_table
from pasta_lm.cli.terminal import silence_libraries

if TYPE_CHECKING:
    from pasta_lm.evaluate.cost import ReadingSystem

COSTS = {
    "cost": "cost: pasta less the baseline",
    "cost_given_text": "  tags left out of the softmax",
    "cost_of_visibility": "pasta less the same model sequentially",
    "cost_of_training": "the taught model less the baseline, both sequential",
    "baseline_gain": "the baseline less the untaught model",
}
Baseline = Annotated[
    str | None,
    option("--baseline", metavar="DIR|HF_ID", help="The sequential baseline."),
]


def cost(
    references: Annotated[
        Path, typer.Argument(metavar="ANSWERS.jsonl", help="Annotated answers to read.")
    ],
    ids: Annotated[
        Path | None, option("--ids", metavar="FILE", help="Read only the rows that it lists.")
    ] = None,
    model: Model = None,
    baseline: Baseline = None,
    untaught: Annotated[
        str | None,
        option("--untaught", metavar="DIR|HF_ID", help="The model before any training."),
    ] = None,
    records: Annotated[
        Path | None, option("--records", metavar="FILE", help="Write a row for each answer here.")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure what not seeing other threads costs.

    Reads given answers with teacher forcing: the taught model under PASTA's visibility and
    sequentially, its sequential baseline, and the untaught model. Nats per token of the text,
    paired by answer.
    """
    from pasta_lm.evaluate.cost import cost_report, measure, read_references
    from pasta_lm.journal import write_rows
    from pasta_lm.strategies.model import BUILTIN, baseline_of

    silence_libraries()
    given = read_references(references, ids)
    ours = model or BUILTIN
    names = {"taught": ours, "baseline": baseline or baseline_of(ours), "untaught": untaught}
    taught, *others = reading_systems(names, dtype, device)
    rows = list(measure(given, taught, others))
    if records is not None:
        write_rows(records, rows)
    found = {"references": str(references), **names, **cost_report(rows)}
    if as_json:
        print_json(found)
    else:
        print_cost(found)


def reading_systems(
    names: Mapping[str, str | None], dtype: str | None, device: str | None
) -> list[ReadingSystem]:
    """Load the models that read: the taught one under PASTA's visibility comes first.

    Raises:
        ModelError: the taught model has no tag pieces.
    """
    from functools import partial

    from pasta_lm.errors import ModelError
    from pasta_lm.evaluate.cost import BASELINE, PASTA, TAUGHT, UNTAUGHT, ReadingSystem
    from pasta_lm.strategies.model import NO_TAG_PIECES, Pasta
    from pasta_lm.train.losses import token_nats

    loaded = {
        name: Pasta.from_pretrained(name, dtype=dtype, device=device).engine.loaded
        for name in dict.fromkeys(name for name in names.values() if name)
    }
    sources = {PASTA: "taught", TAUGHT: "taught", BASELINE: "baseline", UNTAUGHT: "untaught"}
    found = []
    for system, key in sources.items():
        if name := names[key]:
            one = loaded[name]
            read = partial(token_nats, one)
            eos_id = min(one.eos_ids)
            found.append(ReadingSystem(system, one.vocabulary, eos_id, read, one.positions))
    if not found[0].vocabulary.has_pieces:
        raise ModelError(f"{names['taught']}: {NO_TAG_PIECES}", hint="name a taught model: --model")
    return found


def print_cost(found: Mapping[str, Any]) -> None:
    """Print the costs as a table, over all answers and over those with blocks."""
    from pasta_lm.evaluate.cost import REGIONS

    rows = []
    for label, part in (("all", found), ("with blocks", found["forked"])):
        rows.append([f"{label}: {part['num_answers']} answers"])
        for key, title in COSTS.items():
            if key in part:
                regions = part[f"{key}_by_region"]
                cells = [interval(regions[name]) for name in REGIONS]
                rows.append([title, interval(part[key]), *cells])
    print_table(["nats per token", "all", *REGIONS], rows)
    typer.echo(
        f"\n{found['kind']}: {found['taught']} against {found['baseline']}; 95 % bootstrap "
        "intervals over answers"
    )
