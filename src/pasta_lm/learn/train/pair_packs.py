"""Preference pairs as packs: both answers of a pair in one forward pass, with log-probabilities.

Legend: E pairs of a pack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pasta_lm.errors import InputError, VocabularyError
from pasta_lm.journal import Journal
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.data.preferences import PreferencePair
from pasta_lm.learn.train.collate import collate, labelled_logits
from pasta_lm.learn.train.config import TrainConfig
from pasta_lm.learn.train.learner import Learner
from pasta_lm.learn.train.losses import label_log_probs
from pasta_lm.learn.train.sources import check_context, fill_packs, say_left_out
from pasta_lm.models.annotated import Record


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
        return len(self.chosen) + len(self.rejected)

    @property
    def digest(self) -> str:
        """Return a hash of the two answers."""
        parts = (part.token_ids.tobytes() for part in (self.chosen, self.rejected))
        return hashlib.blake2b(b"/".join(parts), digest_size=8).hexdigest()


PairPack = list[EncodedPair]


def pack_pairs(
    pairs: Sequence[PreferencePair], learner: Learner, train: TrainConfig, max_tokens: int
) -> list[PairPack]:
    """Encode and pack pairs; those that cannot be trained on are named on standard error.

    That is a pair longer than a pack, one that exceeds the model's context, or one with an answer
    that the tokenizer would change.

    Raises:
        InputError: no pair is left.
    """
    encode = learner.encoder(train)
    encoded: list[EncodedPair] = []
    left_out: list[str] = []
    for pair in pairs:
        documents = (pair.chosen, pair.rejected)
        try:
            answers = [encode(Record(pair.id, pair.prompt, document)) for document in documents]
            check_context(answers, learner.last_position)
            encoded.append(EncodedPair(pair.id, *answers))
        except (InputError, VocabularyError):
            left_out.append(pair.id)
    packing = fill_packs(encoded, max_tokens, train.seed)
    left_out += packing.too_long
    counted = f"{len(left_out)} of {len(pairs)} pairs"
    say_left_out(f"{counted} are too long, or the tokenizer changes them; they are", left_out)
    if not packing.packs:
        raise InputError(f"nothing to learn: none of {len(pairs)} pairs can be trained on")
    return packing.packs


def collate_pairs(packs: Sequence[PairPack], references: Mapping[str, LogProbs]) -> dict[str, Any]:
    """Flatten packs into one forward pass, each chosen answer before its rejected one.

    Adds ``references``, float32 [E, 2], to what ``collate_answers`` returns.
    """
    pairs = [pair for some in packs for pair in some]
    return {
        **collate_answers(pairs),
        "references": torch.tensor([references[pair.id] for pair in pairs]),
    }


def collate_answers(pairs: Sequence[EncodedPair]) -> dict[str, Any]:
    """Flatten pairs into one forward pass, without reference log-probabilities.

    Adds ``pair_ids`` and ``num_labels`` (labelled tokens of each answer) to what ``collate``
    returns.
    """
    answers = [answer for pair in pairs for answer in (pair.chosen, pair.rejected)]
    num_labels = [sum(label != NO_LABEL for label in answer.labels) for answer in answers]
    ids = [pair.id for pair in pairs]
    return {**collate([answers]), "pair_ids": ids, "num_labels": num_labels}


def pair_log_probs(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Return the log-probabilities of both answers of each pair, by a model with our attention.

    From raw logits at temperature 1, without the mask of legal tags; the end-of-text counts.

    Returns:
        float32 [E, 2], chosen and rejected, in nats.
    """
    log_probs_M = label_log_probs(*labelled_logits(model, batch))  # M labels
    return torch.stack([part.sum() for part in log_probs_M.split(batch["num_labels"])]).view(-1, 2)


def reference_log_probs(
    path: Path,
    packs: Sequence[PairPack],
    load: Callable[[], PreTrainedModel],
    *,
    is_bfloat16: bool,
) -> dict[str, LogProbs]:
    """Return the reference's log-probabilities of all pairs; missing ones are added to a journal.

    A pack is computed in whole even if only some of its rows are missing, as in training. ``load``
    returns the reference with our attention; it is not called if the journal is complete.

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
        missing = [pair.id not in journal.rows for pair in some]
        if any(missing):
            model = model or load()
            computed = zip(some, _log_probs(some, model, is_bfloat16), missing, strict=True)
            journal.append(
                [
                    {"id": pair.id, "pair": pair.digest, **both._asdict()}
                    for pair, both, is_missing in computed
                    if is_missing
                ]
            )
    return {name: LogProbs(row["chosen"], row["rejected"]) for name, row in journal.rows.items()}


def _log_probs(pack: PairPack, model: PreTrainedModel, is_bfloat16: bool) -> list[LogProbs]:
    device = model.device
    batch = {
        key: value.to(device) if isinstance(value, Tensor) else value
        for key, value in collate_answers(pack).items()
    }
    precision = torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16)
    with torch.inference_mode(), precision:
        return [LogProbs(*both) for both in pair_log_probs(model, batch).tolist()]
