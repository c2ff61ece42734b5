"""Measure in nats where the space before a block costs less: in main, or in the block.

    python benchmarks/spaces.py MODEL [--answers 200] [--dtype float32]

Answers are the starter set's that have a block after a space. Each is read four times by a model
that was not taught the tags: with the space in main and in the block; as one text without
tags, cut where the tags stood; and with tags, whose rows are means, in the mask of training.
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import torch
import torch.nn.functional as F

from pasta_lm.engines.local.loading import DTYPES
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Text
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.train.collate import collate, labelled_logits
from pasta_lm.learn.train.config import ModelConfig
from pasta_lm.learn.train.learner import Learner, load_learner
from pasta_lm.machine import describe_machine
from pasta_lm.models.annotated import Record, read_records

STARTER = Path(__file__).parents[1] / "corpora" / "starter" / "starter.jsonl"
Nats = list[list[float]]  # of each label of main, then of each block's text


def with_spaces_in_main(record: Record) -> Record:
    """Return a record whose blocks leave the spaces before them in main."""
    changed = replace(record)
    # A record moves the spaces into the blocks when it is made.
    object.__setattr__(changed, "document", Document(tuple(_lone(record.document))))
    return changed


def _lone(document: Document) -> Iterator[Item]:
    for item in document.items:
        if not isinstance(item, Block):
            yield item
            continue
        text = item.plain_text.lstrip(" ")
        yield Text(" " * (len(item.plain_text) - len(text)))
        yield replace(item, items=(Text(text),))


def cut_text(learner: Learner, record: Record) -> EncodedExample:
    """Encode an answer as one text without tags, each text between two tags alone."""
    ids = learner.vocabulary.encode_prompt([{"role": "user", "content": record.prompt}])
    num_prompt, owners, num_blocks = len(ids), [0] * len(ids), 0
    for item in record.document.items:
        if isinstance(item, (Text, Block)):
            text = item.text if isinstance(item, Text) else item.plain_text
            num_blocks += isinstance(item, Block)
            new = learner.vocabulary.encode_text(text)
            owners += [1 + num_blocks if isinstance(item, Block) else 1] * len(new)
            ids += new
    # The owner is that of the token that is predicted: no tag opens a block here.
    return EncodedExample(
        id=record.id,
        token_ids=array("i", ids),
        labels=array("i", [*[NO_LABEL] * (num_prompt - 1), *ids[num_prompt:], NO_LABEL]),
        positions=array("i", range(len(ids))),
        owners=array("i", [*owners[1:], 1]),
        row_of=array("i"),
        rows=None,
        num_prompt=num_prompt,
    )


def nats(learner: Learner, record: Record, *, has_tags: bool) -> Nats:
    """Read one answer."""
    encode = learner.encoder(PositionStrategy.PREDICT)
    example = encode(record) if has_tags else cut_text(learner, record)
    with torch.inference_mode():
        logits, labels = labelled_logits(learner.model, collate([[example]]))
    losses = iter(F.cross_entropy(logits[0].float(), labels[0], reduction="none").tolist())
    found: Nats = [[] for _ in range(max(example.owners))]
    for label, owner in zip(example.labels, example.owners, strict=True):
        if label != NO_LABEL:
            found[max(owner, 1) - 1].append(next(losses))
    return [found[0], *(block[:-1] if has_tags else block for block in found[1:])]  # no </async>


def figures(answers: Sequence[Nats]) -> dict[str, float]:
    """Return nats a block: its first token, its text, and with its share of main."""
    blocks = [block for _, *found in answers for block in found]
    return {
        "first_token_mean": mean(block[0] for block in blocks),
        "first_token_median": median(block[0] for block in blocks),
        "block_mean": mean(map(sum, blocks)),
        "block_median": median(map(sum, blocks)),
        "answer_for_each_block": sum(sum(map(sum, answer)) for answer in answers) / len(blocks),
    }


def report(found: dict[str, list[Nats]]) -> dict[str, object]:
    """Return the figures of all ways to read the answers so far."""
    (some, *_) = found.values()
    counts = {"num_answers": len(some), "num_blocks": sum(len(answer) - 1 for answer in some)}
    return counts | {name: figures(answers) for name, answers in found.items()}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    args = parser.parse_args()
    torch.set_num_threads(1)
    learner = load_learner(ModelConfig(base=args.model))
    learner.model.to(DTYPES[args.dtype]).eval()
    records = [
        record
        for record in read_records(STARTER)
        if any(block.plain_text.startswith(" ") for block in record.document.blocks)
    ][: args.answers]
    found: dict[str, list[Nats]] = {}
    for number, record in enumerate(records, start=1):
        for place, one in (("main", with_spaces_in_main(record)), ("block", record)):
            for tags in ("no tags", "tags"):
                read = nats(learner, one, has_tags=tags == "tags")
                found.setdefault(f"space in {place}, {tags}", []).append(read)
        if number % 20 == 0:
            print(json.dumps(report(found)), file=sys.stderr, flush=True)
    conditions = {"model": args.model, "dtype": args.dtype, "machine": describe_machine()}
    print(json.dumps(conditions | report(found), indent=2))


if __name__ == "__main__":
    main()
