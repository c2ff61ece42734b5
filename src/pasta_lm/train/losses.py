"""Losses as pure functions: next tokens from logits and labels, preferences from log-probabilities.

Legend: N tokens of a pack, V tokens of the vocabulary, E pairs of answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

from pasta_lm.data.encode import NO_LABEL


def next_token_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross entropy over the tokens that have a label; NaN if none has.

    Logits are [1, N, V], labels int64 [1, N]: what each token predicts, so nothing is shifted.
    With weights, float32 [M] for the M labels, it is the weighted mean.
    """
    if weights is None:
        return F.cross_entropy(logits[0].float(), labels[0], ignore_index=NO_LABEL)
    has_label = labels[0] != NO_LABEL
    losses = F.cross_entropy(logits[0, has_label].float(), labels[0, has_label], reduction="none")
    return (losses * weights).sum() / weights.sum()


def answer_log_probs(logits: Tensor, labels: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the log-probability of each answer of a pack, summed over its labelled tokens.

    Args:
        logits: [1, N, V].
        labels: int64 [1, N]; what each token predicts, or ``NO_LABEL``.
        lengths: Tokens of each example of the pack, N together.

    Returns:
        [number of examples], nats, in the dtype of the logits and at least float32.
    """
    full = logits[0] if logits.dtype is torch.float64 else logits[0].float()
    losses = F.cross_entropy(full, labels[0], ignore_index=NO_LABEL, reduction="none")
    return -torch.stack([part.sum() for part in losses.split(list(lengths))])


@dataclass(frozen=True, slots=True)
class PairLogProbs:
    """Log-probabilities of E pairs under the policy and the reference: [E] each, in nats."""

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor

    @property
    def margin(self) -> Tensor:
        """Return log(p(chosen) / p(rejected)) of the policy minus that of the reference: [E]."""
        ours = self.chosen - self.rejected
        return ours - (self.reference_chosen - self.reference_rejected)


def bonbon_beta(num_samples: int) -> float:
    """Return BoNBoN's beta for the best and the worst of n samples: 1 / (2 (n - 1) H(n - 1)).

    H is the harmonic number. The target margin is 1 / (2 beta).

    Raises:
        ValueError: n is below 2, so there is no pair.

    Source: Gui, Garbacea and Veitch, "BoNBoN alignment", arXiv 2406.00832. PASTA leaves beta open.
    """
    if num_samples < 2:
        raise ValueError(f"best of {num_samples}: there is no pair")
    harmonic = sum(Fraction(1, k) for k in range(1, num_samples))
    return float(1 / (2 * (num_samples - 1) * harmonic))


def bonbon_loss(pairs: PairLogProbs, alpha: float, beta: float) -> Tensor:
    """Return BoNBoN's loss: likelihood of the better answer and its margin over the worse.

    -alpha log p(chosen) + (1 - alpha) (margin - 1 / (2 beta))^2, the mean over pairs. The paper
    has alpha = 0.005.

    Source: PASTA, the loss of stage two; Gui et al., arXiv 2406.00832.
    """
    return (-alpha * pairs.chosen + (1 - alpha) * (pairs.margin - 1 / (2 * beta)) ** 2).mean()


def ipo_loss(pairs: PairLogProbs, beta: float) -> Tensor:
    """Return the IPO loss, (margin - 1 / (2 beta))^2: BoNBoN's without the likelihood.

    Source: Azar et al., arXiv 2310.12036.
    """
    return ((pairs.margin - 1 / (2 * beta)) ** 2).mean()


def dpo_loss(pairs: PairLogProbs, beta: float) -> Tensor:
    """Return the DPO loss, -log sigmoid(beta * margin), the mean over pairs.

    Source: Rafailov et al., arXiv 2305.18290.
    """
    return -F.logsigmoid(beta * pairs.margin).mean()
