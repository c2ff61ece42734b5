"""Pairs of answers as packs: both answers of a pair in one pass, and how likely a model finds them.

Legend: E pairs of a pack.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from pasta_lm.data.encode import NO_LABEL, EncodedExample
from pasta_lm.data.packing import pack
from pasta_lm.data.pairs import PreferencePair
from pasta_lm.data.records import Record
from pasta_lm.errors import InputError, VocabularyError
from pasta_lm.train.collate import collate
from pasta_lm.train.losses import answer_log_probs
from pasta_lm.train.sources import Encode, check_context


class LogProbs(NamedTuple):
    """Log-probabilities of the two answers of a pair, in nats."""

    chosen: float
    rejected: float


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """Two answers to one prompt, ready to be learned."""

    id: str
    chosen: EncodedExample
    rejected: EncodedExample

    def __len__(self) -> int:
        """Return how many tokens are fed, the prompt twice."""
        return len(self.chosen) + len(self.rejected)

    @property
    def digest(self) -> str:
        """Return what tells this pair of answers from another one to the same prompt."""
        parts = (part.token_ids.tobytes() for part in (self.chosen, self.rejected))
        return hashlib.blake2b(b"/".join(parts), digest_size=8).hexdigest()


PairPack = list[EncodedPair]


class PairPacks(Dataset[PairPack]):
    """Packs of pairs in the order of the list."""

    def __init__(self, packs: Sequence[PairPack]) -> None:
        """Keep the packs."""
        self._packs = packs

    def __len__(self) -> int:
        """Return how many packs there are."""
        return len(self._packs)

    def __getitem__(self, index: int) -> PairPack:
        """Return one pack."""
        return self._packs[index]


def pack_pairs(
    pairs: Sequence[PreferencePair],
    encode: Encode,
    max_tokens: int,
    seed: int,
    *,
    last_position: int | None = None,
) -> PairPacks:
    """Encode and pack pairs; those that cannot be learned are named on standard error.

    That is a pair longer than a pack, one that reaches beyond the model's context, or one with an
    answer that the tokenizer would change.

    Raises:
        InputError: none is left.
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
    return PairPacks(packing.packs)


def _encode(pair: PreferencePair, encode: Encode, last_position: int | None) -> EncodedPair:
    chosen, rejected = (
        encode(Record(pair.id, pair.prompt, document)) for document in (pair.chosen, pair.rejected)
    )
    check_context([chosen, rejected], last_position)
    return EncodedPair(pair.id, chosen, rejected)


def collate_pairs(packs: Sequence[PairPack], references: Mapping[str, LogProbs]) -> dict[str, Any]:
    """Flatten packs into one forward pass, each chosen answer before its rejected one.

    Args:
        packs: Pairs.
        references: By id, what the reference model finds.

    Returns:
        What ``collate`` returns, ``pair_ids``, ``num_labels`` (tokens to predict of each answer)
        and ``references``, float32 [E, 2].
    """
    pairs = [pair for some in packs for pair in some]
    batch = collate_answers(pairs)
    batch["references"] = torch.tensor([references[pair.id] for pair in pairs])
    return batch


def collate_answers(pairs: Sequence[EncodedPair]) -> dict[str, Any]:
    """Flatten pairs into one forward pass, without what a reference finds."""
    answers = [answer for pair in pairs for answer in (pair.chosen, pair.rejected)]
    num_labels = [sum(label != NO_LABEL for label in answer.labels) for answer in answers]
    ids = [pair.id for pair in pairs]
    return {**collate([answers]), "pair_ids": ids, "num_labels": num_labels}


def pair_log_probs(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Return how likely a model finds the answers of a pack.

    Raw logits, no mask of legal tags, temperature 1: each labelled token once, the end included.

    Args:
        model: With our attention.
        batch: What ``collate_pairs`` returns, on the model's device.

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
