"""Choose the weights of forced annotation for a model, on annotated development data.

Scores every proposal once, then prints the F1 of blocks and syncs for a grid of weights. The scores
are kept in a file, so that a stopped run goes on. Never tune on what you measure with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from pasta_lab.annotate.forced import Candidate, ForcedAnnotator, Score
from pasta_lab.evaluate.agreement import agreement
from pasta_lm.language.document import Document, parse
from pasta_lm.learn.annotate.recipe import Weights
from pasta_lm.models.annotated import Record, read_records
from pasta_lm.strategies.model import Pasta

GRID = ((0.0, 0.1, 0.3, 1.0), (0.0, 1.0, 2.0, 3.0, 5.0), (0.0, 4.0, 8.0, 12.0))
"""Of ``text``, ``block_nats`` and ``rule_nats``."""


def scored(annotator: ForcedAnnotator, record: Record) -> dict[str, Any]:
    """Return a record's candidates as a row."""
    found = annotator.candidates(record.prompt, record.document.plain_text)
    rows = [(one.document.annotator_form(), one.is_rule, one.score) for one in found]
    return {"id": record.id, "candidates": rows}


def read(row: dict[str, Any]) -> list[Candidate]:
    """Return the candidates of a row."""
    return [
        Candidate(parse(text, "annotator"), is_rule, None if score is None else Score(*score))
        for text, is_rule, score in row["candidates"]
    ]


def table(found: list[list[Candidate]], truth: list[Document]) -> Iterator[str]:
    """Yield a line for each set of weights."""
    yield "text block_nats rule_nats   F1 of blocks   F1 of syncs   forks: same"
    for text, block, rule in product(*GRID):
        weights = Weights(text=text, block_nats=block, rule_nats=rule)
        best = [max(one, key=lambda c: c.total(weights)).document for one in found]
        figures = agreement(best, truth)
        f1s = (figures["blocks"]["overlap_f1"], figures["syncs"]["f1"], figures["forks"]["same"])
        cells = "   ".join(f"{f1['mean']:11.3f}" if f1 else f"{'-':>11}" for f1 in f1s)
        yield f"{text:4} {block:10} {rule:9}   {cells}"


def main() -> None:
    """Score what is not scored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("annotated", type=Path, help="the development data")
    parser.add_argument("--scores", type=Path, required=True, help="where scores are kept")
    parser.add_argument("--exclude", type=Path, nargs="*", default=[], help="annotated data")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--dtype")
    flags = parser.parse_args()
    left_out = {one.id for file in flags.exclude for one in read_records(file)}
    records = [one for one in read_records(flags.annotated) if one.id not in left_out]
    Random(0).shuffle(records)  # files are in order of their domains
    records = records[: flags.limit]
    known = flags.scores.read_text("utf-8").splitlines() if flags.scores.exists() else []
    rows = {row["id"]: row for row in map(json.loads, known)}
    if any(record.id not in rows for record in records):
        model = Pasta.from_pretrained(flags.model, dtype=flags.dtype)
        annotator = ForcedAnnotator(model.engine.loaded)
        with flags.scores.open("a", encoding="utf-8") as file:
            for record in records:
                if record.id not in rows:
                    row = rows[record.id] = scored(annotator, record)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
    found = [read(rows[record.id]) for record in records]
    print("\n".join(table(found, [record.document for record in records])))


if __name__ == "__main__":
    main()
