"""Preference pairs as packs: both answers of a pair in one forward pass, with log-probabilities.

Legend: E pairs of a pack.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pasta_lm.data.encode import NO_LABEL, EncodedExample
from pasta_lm.data.packing import pack
from pasta_lm.data.preferences import PreferencePair
from pasta_lm.engines.annotated import Record
from pasta_lm.errors import InputError, VocabularyError
from pasta_lm.journal import Journal, Row
from pasta_lm.train.collate import collate
from pasta_lm.train.losses import answer_log_probs
from pasta_lm.train.sources import Encode, check_context


class LogProbs(NamedTuple):
    """Log-probabilities of the two answers of a pair, in nats."""

    chosen: float
    rejected: float


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Two encoded answers to one prompt."""

    id: str
    chosen: EncodedExample
    rejected: EncodedExample

    def __len__(self) -> int:
        """Return the number of tokens, the prompt counted twice."""
        return len(self.chosen) + len(self.rejected)

    @property
    def digest(self) -> str:
        """Return a hash of the two answers."""
        parts = (part.token_ids.tobytes() for part in (self.chosen, self.rejected))
        return hashlib.blake2b(b"/".join(parts), digest_size=8).hexdigest()


PairPack = list[EncodedPair]


def pack_pairs(
    pairs: Sequence[PreferencePair],
    encode: Encode,
    max_tokens: int,
    seed: int,
    *,
    last_position: int | None = None,
) -> list[PairPack]:
    """Encode and pack pairs; those that cannot be trained on are named on standard error.

    That is a pair longer than a pack, one that exceeds the model's context, or one with an answer
    that the tokenizer would change.

    Raises:
        InputError: no pair is left.
    """
    encoded: list[EncodedPair] = []
    left_out: list[str] = []
    for pair in pairs:
        try:
            encoded.append(_encode(pair, encode, last_position))
        except (InputError, VocabularyError):
            left_out.append(pair.id)
    packing = pack(encoded, max_tokens, seed)
    left_out += packing.too_long
    if left_out:
        shown = ", ".join(left_out[:5])
        print(  # noqa: T201
            f"pasta: {len(left_out)} of {len(pairs)} pairs are too long, or the tokenizer changes "
            f"them; they are left out: {shown}",
            file=sys.stderr,
        )
    if not packing.packs:
        raise InputError(f"nothing to learn: none of {len(pairs)} pairs can be trained on")
    return packing.packs


def _encode(pair: PreferencePair, encode: Encode, last_position: int | None) -> EncodedPair:
    chosen, rejected = (
        encode(Record(pair.id, pair.prompt, document)) for document in (pair.chosen, pair.rejected)
    )
    check_context([chosen, rejected], last_position)
    return EncodedPair(pair.id, chosen, rejected)


def collate_pairs(packs: Sequence[PairPack], references: Mapping[str, LogProbs]) -> dict[str, Any]:
    """Flatten packs into one forward pass, each chosen answer before its rejected one.

    Args:
        packs: Packs of pairs.
        references: The log-probabilities under the reference model, by pair id.

    Returns:
        What ``collate`` returns, ``pair_ids``, ``num_labels`` (labelled tokens of each answer) and
        ``references``, float32 [E, 2].
    """
    pairs = [pair for some in packs for pair in some]
    batch = collate_answers(pairs)
    batch["references"] = torch.tensor([references[pair.id] for pair in pairs])
    return batch


def collate_answers(pairs: Sequence[EncodedPair]) -> dict[str, Any]:
    """Flatten pairs into one forward pass, without reference log-probabilities."""
    answers = [answer for pair in pairs for answer in (pair.chosen, pair.rejected)]
    num_labels = [sum(label != NO_LABEL for label in answer.labels) for answer in answers]
    ids = [pair.id for pair in pairs]
    return {**collate([answers]), "pair_ids": ids, "num_labels": num_labels}


def pair_log_probs(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Return the log-probabilities of the answers of a pack.

    From raw logits at temperature 1, without the mask of legal tags; the end-of-text counts.

    Args:
        model: A model with our attention.
        batch: What ``collate_answers`` returns, on the model's device.

    Returns:
        float32 [E, 2], nats: the chosen and the rejected answer of each pair.
    """
    labels = batch["shift_labels"]
    learned = (labels[0] != NO_LABEL).nonzero()[:, 0]
    out = model(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        pasta_pass=batch["pasta_pass"],
        use_cache=False,
        logits_to_keep=learned,
    )
    found = answer_log_probs(out.logits, labels[:, learned], batch["num_labels"])
    return found.view(-1, 2)


def reference_log_probs(
    path: Path,
    packs: Sequence[PairPack],
    load: Callable[[], PreTrainedModel],
    *,
    is_bfloat16: bool,
) -> dict[str, LogProbs]:
    """Return the reference's log-probabilities of all pairs; missing ones are added to a journal.

    A pack is computed in whole even if only some of its rows are missing, as in training.

    Args:
        path: The journal.
        packs: All pairs.
        load: Loads the reference with our attention; not called if the journal is complete.
        is_bfloat16: Whether training computes in bfloat16.

    Raises:
        InputError: the journal has log-probabilities of other answers.
    """
    journal, model = Journal(path), None
    for pair in (pair for some in packs for pair in some):
        if journal.rows.get(pair.id, {"pair": pair.digest}).get("pair") != pair.digest:
            raise InputError(
                f"{path} is of another pair {pair.id}",
                hint="the pairs have changed: remove this file, or name another train.out",
            )
    for some in packs:
        missing = [place for place, pair in enumerate(some) if pair.id not in journal.rows]
        if missing:
            model = model or load()
            found = _log_probs(some, model, is_bfloat16)
            journal.append([_row(some[place], *found[place]) for place in missing])
    return {name: LogProbs(row["chosen"], row["rejected"]) for name, row in journal.rows.items()}


def _row(pair: EncodedPair, chosen: float, rejected: float) -> Row:
    return {"id": pair.id, "pair": pair.digest, "chosen": chosen, "rejected": rejected}


def _log_probs(pack: PairPack, model: PreTrainedModel, is_bfloat16: bool) -> list[list[float]]:
    device = model.device
    batch = {
        key: value.to(device) if isinstance(value, Tensor) else value
        for key, value in collate_answers(pack).items()
    }
    precision = torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16)
    with torch.inference_mode(), precision:
        rows: list[list[float]] = pair_log_probs(model, batch).tolist()
    return rows
