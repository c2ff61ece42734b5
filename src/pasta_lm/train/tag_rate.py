"""Learning rates of rows in the token matrices: one for the tag pieces, none for old tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pasta_lm.engines.torch.adapter import token_matrices
from pasta_lm.train.config import TrainConfig
from pasta_lm.train.learner import Learner

_APART = "trainable_tokens_delta"
"""peft's name for rows that are trained while their matrix is frozen."""


@dataclass(frozen=True, slots=True)
class RowRate:
    """Rows of a weight in training, and their learning rate as a multiple of the others'."""

    weight: Tensor
    ids: Tensor | None
    """int64 [number of rows]; None: all rows."""
    ratio: float

    def read(self) -> Tensor:
        """Return a copy of the rows."""
        weight = self.weight.detach()
        return weight.clone() if self.ids is None else weight[self.ids]

    @torch.no_grad()
    def write(self, rows: Tensor) -> None:
        """Replace the rows."""
        self.weight[slice(None) if self.ids is None else self.ids] = rows


def row_rates(learner: Learner, train: TrainConfig) -> list[RowRate]:
    """Return the rows whose learning rate is not that of the other weights; see ``TrainConfig``.

    Beside adapters the rows of the tag pieces are weights of their own, and the others frozen.
    """
    ratio = (train.tag_learning_rate or train.learning_rate) / train.learning_rate
    named = learner.model.named_parameters()
    if apart := [weight for name, weight in named if _APART in name]:
        return [RowRate(weight, None, ratio) for weight in apart if ratio != 1]
    found = []
    for matrix in token_matrices(learner.model).values():
        is_tag = torch.zeros(len(matrix), dtype=torch.bool)
        is_tag[list(learner.vocabulary.piece_ids.values())] = True
        if ratio != 1:
            found.append(RowRate(matrix, is_tag.nonzero()[:, 0], ratio))
        if train.freeze_old_rows:
            found.append(RowRate(matrix, (~is_tag).nonzero()[:, 0], 0.0))
    return found


def scale_updates(optimizer: torch.optim.Optimizer, rows: Sequence[RowRate]) -> None:
    """Let each step of an optimiser move rows ``ratio`` times as far; with 0 they stay.

    AdamW's step, weight decay included, is linear in the learning rate, and its moments do not
    depend on it: this is exactly a rate of ``ratio`` times the others', which no parameter group
    can give to some rows of a matrix. Nothing is kept between steps, so checkpoints need no more.
    """
    if not rows:
        return
    before: list[Tensor] = []

    def keep(*_: Any) -> None:
        before[:] = [one.read() for one in rows]

    def scale(*_: Any) -> None:
        for one, old in zip(rows, before, strict=True):
            one.write(old + one.ratio * (one.read() - old))

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(scale)
