"""A learning rate of its own for the tag pieces' rows in the input and output matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pasta_lm.engines.torch.adapter import token_matrices
from pasta_lm.train.learner import Learner

_APART = "trainable_tokens_delta"
"""peft's name for rows that are trained while their matrix is frozen."""


@dataclass(frozen=True, slots=True)
class TrainedRows:
    """Rows of a weight in training."""

    weight: Tensor
    ids: Tensor | None
    """int64 [number of rows]; None: all rows."""

    def read(self) -> Tensor:
        """Return a copy of the rows."""
        weight = self.weight.detach()
        return weight.clone() if self.ids is None else weight[self.ids]

    @torch.no_grad()
    def write(self, rows: Tensor) -> None:
        """Replace the rows."""
        self.weight[slice(None) if self.ids is None else self.ids] = rows


def trained_tag_rows(learner: Learner) -> list[TrainedRows]:
    """Return the trained rows of the tag pieces; beside adapters they are weights of their own."""
    named = dict(learner.model.named_parameters())
    if apart := [one for name, one in named.items() if _APART in name]:
        return [TrainedRows(one, None) for one in apart]
    ids = torch.tensor(sorted(learner.vocabulary.piece_ids.values()))
    return [TrainedRows(matrix, ids) for matrix in token_matrices(learner.model).values()]


def scale_updates(
    optimizer: torch.optim.Optimizer, rows: Sequence[TrainedRows], ratio: float
) -> None:
    """Let each step of an optimiser move rows ``ratio`` times as far.

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
            one.write(old + ratio * (one.read() - old))

    optimizer.register_step_pre_hook(keep)
    optimizer.register_step_post_hook(scale)
