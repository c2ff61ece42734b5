"""What the reference model finds of each pair: computed once, written down beside the pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pasta_lm.errors import InputError
from pasta_lm.journal import Journal, Row
from pasta_lm.train.pair_packs import (
    EncodedPair,
    LogProbs,
    PairPack,
    PairPacks,
    collate_answers,
    pair_log_probs,
)


def reference_log_probs(
    path: Path, packs: PairPacks, load: Callable[[], PreTrainedModel], *, is_bfloat16: bool
) -> dict[str, LogProbs]:
    """Return the log-probabilities of all pairs, those of the journal and what it lacks.

    A pack is computed in whole even if only some of its rows are missing, as training meets it.

    Args:
        path: The journal.
        packs: All pairs.
        load: Loads the reference with our attention; not called where the journal is complete.
        is_bfloat16: Whether training computes in bfloat16.

    Raises:
        InputError: the journal is of other answers.
    """
    journal = Journal(path)
    _check_same(journal, packs)
    todo = [packs[i] for i in range(len(packs)) if _missing(packs[i], journal)]
    if todo:
        model = load()
        for pack in todo:
            found = _log_probs(pack, model, is_bfloat16)
            journal.append([_row(pack[i], *found[i]) for i in _missing(pack, journal)])
    return {name: LogProbs(row["chosen"], row["rejected"]) for name, row in journal.rows.items()}


def _missing(pack: PairPack, journal: Journal) -> list[int]:
    return [place for place, pair in enumerate(pack) if pair.id not in journal.rows]


def _row(pair: EncodedPair, chosen: float, rejected: float) -> Row:
    return {"id": pair.id, "pair": pair.digest, "chosen": chosen, "rejected": rejected}


def _check_same(journal: Journal, packs: PairPacks) -> None:
    """Refuse log-probabilities of other answers to the same prompts."""
    for index in range(len(packs)):
        for pair in packs[index]:
            row = journal.rows.get(pair.id)
            if row is not None and row.get("pair") != pair.digest:
                raise InputError(
                    f"{journal.path} is of another pair {pair.id}",
                    hint="the pairs have changed: remove this file, or name another train.out",
                )


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
