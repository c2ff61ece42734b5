"""Losses as pure functions of logits and labels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pasta_lm.data.encode import NO_LABEL


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy over the tokens that have a label.

    Args:
        logits: [1, N, V]; what each token predicts.
        labels: int64 [1, N], already what each token predicts: nothing is shifted.

    Returns:
        float32, a scalar; NaN where no token has a label.
    """
    return F.cross_entropy(logits[0].float(), labels[0], ignore_index=NO_LABEL)
