"""Training data as packs of whole examples or pairs.

Legend: M tokens of a pack with a label, E pairs of a pack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pasta_lm.errors import InputError, VocabularyError
from pasta_lm.learn.data.annotated import Record, read_ids, read_records
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.data.layout import RULES
from pasta_lm.learn.data.preferences import PreferencePair
from pasta_lm.learn.train.config import DataConfig
from pasta_lm.learn.train.losses import Batch, collate, label_nats, on_device, over_labels
from pasta_lm.run_folder import say

Encode = Callable[[Record], EncodedExample]
Pack = list[EncodedExample]


def packs_of(
    config: DataConfig, encode: Encode, seed: int, *, last_position: int | None = None
) -> list[Pack]:
    records = _read_included(config)
    if config.turns == "all":
        records = [answer for record in records for answer in record.each_answer()]
    if config.rule is not None:
        rule = RULES[config.rule]
        records = [replace(record, document=rule(record.document)) for record in records]
    elif config.plain:
        records = [record.without_tags() for record in records]
    packs, too_long = fill_packs(map(encode, records), config.max_tokens, seed)
    counted = f"{len(too_long)} of {len(records)} records"
    say_left_out(f"{counted} are longer than {config.max_tokens} tokens and", too_long)
    if not packs:
        raise InputError(f"nothing to learn: none of {len(records)} records can be trained on")
    for pack in packs:
        check_context(pack, last_position)
    return packs


def _read_included(config: DataConfig) -> list[Record]:
    records = [record for path in config.paths for record in read_records(path)]
    prompts = {record.id: record.prompt for record in records}
    held_out: set[str] = set()
    for path in config.exclude_paths:
        ids = read_ids(path)
        unknown = [name for name in ids if name not in prompts]
        if len(unknown) == len(ids):
            reason = f"no record has one of its ids ({', '.join(ids[:3]) or 'it is empty'})"
            hint = f"data.file has {f'ids such as {records[0].id}' if records else 'no records'}"
            raise InputError(f"data.exclude {path} holds out nothing: {reason}", hint=hint)
        say_left_out(f"{len(unknown)} of {len(ids)} ids of {path} are in no record and", unknown)
        held_out.update(ids)
    others = [row.id for row in records if row.id in held_out and row.prompt != prompts[row.id]]
    if others:
        raise InputError(f"data.exclude has the id {others[0]}, which records of two prompts have")
    return [record for record in records if record.id not in held_out]


def check_context(pack: Pack, last_position: int | None) -> None:
    for example in pack:
        if last_position is not None and (last := max(example.positions)) > last_position:
            reason = f"record {example.id} reaches position {last}, and the model's last is"
            hint = "leave it out, or lower data.max_tokens so that longer records are left out"
            raise InputError(f"{reason} {last_position}", hint=hint)


def say_left_out(reason: str, ids: Sequence[str]) -> None:
    if ids:
        say(f"{reason} left out: {', '.join(ids[:5])}")


LogProbs = Sequence[float]
"""Log-probabilities of the chosen and the rejected answer of a pair, in nats."""


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Two encoded answers to one prompt."""

    id: str
    chosen: EncodedExample
    rejected: EncodedExample

    def __len__(self) -> int:
        return len(self.chosen) + len(self.rejected)


PairPack = list[EncodedPair]
P = TypeVar("P", EncodedExample, EncodedPair)


def fill_packs(
    examples: Iterable[P], max_tokens: int, seed: int = 0
) -> tuple[list[list[P]], list[str]]:
    """Return packs of at most ``max_tokens``, shuffled, and the ids of longer examples."""
    order = list(examples)
    packs, too_long, room = list[list[P]](), list[str](), 0
    for example in Random(seed).sample(order, len(order)):
        if len(example) > max_tokens:
            too_long.append(example.id)
            continue
        if len(example) > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(example)
        room -= len(example)
    return packs, too_long


def pack_pairs(
    pairs: Sequence[PreferencePair], encode: Encode, max_tokens: int, seed: int, *,
    last_position: int | None = None,
) -> list[PairPack]:  # fmt: skip
    """Encode and pack pairs; those that cannot be trained on are named on standard error.

    Those exceed a pack or the context, or the tokenizer changes them. InputError: none is left.
    """
    encoded, left_out = list[EncodedPair](), list[str]()
    for pair in pairs:
        documents = (pair.chosen, pair.rejected)
        try:
            of_pair = partial(Record, pair.id, pair.prompt, turns=pair.turns)
            answers = [encode(of_pair(document)) for document in documents]
            check_context(answers, last_position)
            encoded.append(EncodedPair(pair.id, *answers))
        except (InputError, VocabularyError):
            left_out.append(pair.id)
    packs, too_long = fill_packs(encoded, max_tokens, seed)
    left_out += too_long
    counted = f"{len(left_out)} of {len(pairs)} pairs"
    say_left_out(f"{counted} are too long, or the tokenizer changes them; they are", left_out)
    if not packs:
        raise InputError(f"nothing to learn: none of {len(pairs)} pairs can be trained on")
    return packs


def collate_pairs(
    packs: Sequence[PairPack], references: Mapping[str, LogProbs] | None = None
) -> Batch:
    """Flatten packs into one forward pass, each chosen answer before its rejected one.

    Adds to what ``collate`` returns: ``pair_ids``, ``num_labels`` of each answer, and the
    reference's log-probabilities as ``references``, float32 [E, 2].
    """
    pairs = [pair for pack in packs for pair in pack]
    answers = [answer for pair in pairs for answer in (pair.chosen, pair.rejected)]
    num_labels = [sum(label != NO_LABEL for label in answer.labels) for answer in answers]
    batch = collate([answers]) | {"pair_ids": [pair.id for pair in pairs], "num_labels": num_labels}
    if references is not None:
        batch["references"] = torch.tensor([references[pair.id] for pair in pairs])
    return batch


def pair_log_probs(nats_M: Tensor, batch: Batch) -> Tensor:
    """Return log-probabilities of both answers of each pair: float32 [E, 2], in nats.

    From raw logits at temperature 1, without the mask of legal tags; the end-of-text counts.
    """
    return torch.stack([-part.sum() for part in nats_M.split(batch["num_labels"])]).view(-1, 2)


def reference_log_probs(
    packs: Sequence[PairPack], model: PreTrainedModel, *, is_bfloat16: bool
) -> dict[str, LogProbs]:
    references: dict[str, LogProbs] = {}
    for pack in packs:
        batch = on_device(collate_pairs([pack]), model.device)
        precision = torch.autocast(model.device.type, torch.bfloat16, enabled=is_bfloat16)
        with torch.inference_mode(), precision:
            both = pair_log_probs(over_labels(model, batch, label_nats), batch)
        references |= zip(batch["pair_ids"], both.tolist(), strict=True)
    return references
