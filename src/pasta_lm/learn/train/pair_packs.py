"""Preference pairs as packs: both answers of a pair in one forward pass, with log-probabilities.

Legend: E pairs of a pack, M labels of their answers.
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
from pasta_lm.journal import Journal, Row
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample
from pasta_lm.learn.data.preferences import PreferencePair
from pasta_lm.learn.train.collate import collate, labelled_logits
from pasta_lm.learn.train.losses import label_log_probs
from pasta_lm.learn.train.sources import Encode, check_context, pack, say_left_out
from pasta_lm.models.annotated import Record


class LogProbs(NamedTuple):
    """Log-probabilities of the two answers of a pair, in nats."""

    chosen: float
    rejected: float
    tokens: Sequence[float] = ()
    """Of every token of both, the chosen answer first; empty where only the sums are needed."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which log-probabilities of an answer count."""

    decisions_only: bool = False
    """Sums count main's decisions alone, see ``decisions_of``."""
    tokens: bool = False
    """Those of single tokens are wanted as well."""


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
        documents = (pair.chosen, pair.rejected)
        try:
            answers = [encode(Record(pair.id, pair.prompt, one)) for one in documents]
            check_context(answers, last_position)
            encoded.append(EncodedPair(pair.id, *answers))
        except (InputError, VocabularyError):
            left_out.append(pair.id)
    packing = pack(encoded, max_tokens, seed)
    left_out += packing.too_long
    counted = f"{len(left_out)} of {len(pairs)} pairs"
    say_left_out(f"{counted} are too long, or the tokenizer changes them; they are", left_out)
    if not packing.packs:
        raise InputError(f"nothing to learn: none of {len(pairs)} pairs can be trained on")
    return packing.packs


def collate_pairs(packs: Sequence[PairPack], references: Mapping[str, LogProbs]) -> dict[str, Any]:
    """Flatten packs into one forward pass, each chosen answer before its rejected one.

    Adds ``pair_ids``, ``num_labels`` (labelled tokens of each answer), ``is_decision``, bool [M],
    and ``references``, float32 [E, 2], to what ``collate`` returns; ``reference_tokens``, float32
    [M], if the references have them.
    """
    pairs = [pair for some in packs for pair in some]
    batch = collate_answers(pairs)
    found = [references[pair.id] for pair in pairs]
    batch["references"] = torch.tensor([[one.chosen, one.rejected] for one in found])
    if tokens := [nats for one in found for nats in one.tokens]:
        batch["reference_tokens"] = torch.tensor(tokens)
    return batch


def collate_answers(pairs: Sequence[EncodedPair]) -> dict[str, Any]:
    """Flatten pairs into one forward pass, without reference log-probabilities."""
    answers = [answer for pair in pairs for answer in (pair.chosen, pair.rejected)]
    num_labels = [sum(label != NO_LABEL for label in answer.labels) for answer in answers]
    ids = [pair.id for pair in pairs]
    decides = [slot in decisions for answer in answers for slot, decisions in _labelled(answer)]
    more = {"pair_ids": ids, "num_labels": num_labels, "is_decision": torch.tensor(decides)}
    return {**collate([answers]), **more}


def _labelled(answer: EncodedExample) -> list[tuple[int, frozenset[int]]]:
    """Return the slots of an answer's labels, each with the slots of all decisions."""
    decisions = frozenset(answer.decisions)
    return [(slot, decisions) for slot, label in enumerate(answer.labels) if label != NO_LABEL]


def token_log_probs(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Return the log-probabilities of all labels of a pack, by a model with our attention.

    From raw logits at temperature 1, without the mask of legal tags; the end-of-text counts.

    Returns:
        float32 [M], nats.
    """
    return label_log_probs(*labelled_logits(model, batch))


def pair_sums(
    log_probs_M: Tensor, batch: Mapping[str, Any], *, decisions_only: bool = False
) -> Tensor:
    """Return [E, 2]: what the chosen and the rejected answer of each pair have together."""
    counted_M = log_probs_M * batch["is_decision"] if decisions_only else log_probs_M
    return torch.stack([part.sum() for part in counted_M.split(batch["num_labels"])]).view(-1, 2)


def reference_log_probs(
    path: Path,
    packs: Sequence[PairPack],
    load: Callable[[], PreTrainedModel],
    *,
    is_bfloat16: bool,
    wanted: Wanted = Wanted(),  # frozen
) -> dict[str, LogProbs]:
    """Return the reference's log-probabilities of all pairs; missing ones are added to a journal.

    A pack is computed in whole even if only some of its rows are missing, as in training. ``load``
    gives the reference with our attention; it is not called if the journal is complete.

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
            found = _log_probs(some, model, is_bfloat16, wanted)
            rows: list[Row] = []
            for place in missing:
                key = {"id": some[place].id, "pair": some[place].digest}
                known = found[place]._asdict()
                rows.append(key | {name: one for name, one in known.items() if one != ()})
            journal.append(rows)
    return {
        name: LogProbs(row["chosen"], row["rejected"], tuple(row.get("tokens", ())))
        for name, row in journal.rows.items()
    }


def _log_probs(
    pack: PairPack, model: PreTrainedModel, is_bfloat16: bool, wanted: Wanted
) -> list[LogProbs]:
    device = model.device
    batch = {
        key: value.to(device) if isinstance(value, Tensor) else value
        for key, value in collate_answers(pack).items()
    }
    precision = torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16)
    with torch.inference_mode(), precision:
        each_M = token_log_probs(model, batch)
        sums = pair_sums(each_M, batch, decisions_only=wanted.decisions_only).tolist()
    counts = [sum(two) for two in zip(*[iter(batch["num_labels"])] * 2, strict=True)]
    tokens = [part.tolist() if wanted.tokens else () for part in each_M.split(counts)]
    return [LogProbs(a, b, nats) for (a, b), nats in zip(sums, tokens, strict=True)]
