from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pasta_lm.learn.data.encode import NO_LABEL
from pasta_lm.learn.train.losses import (
    PairLogProbs,
    bonbon_loss,
    label_log_probs,
)
from pasta_lm.learn.train.preference_config import bonbon_beta

NATS = st.floats(-80, 0)
FOUR = st.tuples(NATS, NATS, NATS, NATS)


def pairs(*rows: tuple[float, float, float, float]) -> PairLogProbs:
    return PairLogProbs(*torch.tensor(rows, dtype=torch.float64).T)


@pytest.mark.parametrize(
    ("num_samples", "beta"),
    # n = 2: 1 / (2 * 1 * 1); n = 3: 1 / (2 * 2 * 3/2); n = 10: H_9 = 7129/2520
    [(2, 1 / 2), (3, 1 / 6), (5, 1 / (8 * 25 / 12)), (10, 0.0196382)],
)
def test_beta_equals_bonbons_formula(num_samples: int, beta: float) -> None:
    assert bonbon_beta(num_samples) == pytest.approx(beta, rel=1e-5)


def test_a_single_sample_has_no_beta() -> None:
    with pytest.raises(ValueError, match="no pair"):
        bonbon_beta(1)


# margin = (-10 + 14) - (-11 + 12) = 3
ROW = (-10.0, -14.0, -11.0, -12.0)


def test_losses_equal_values_computed_by_hand() -> None:
    assert pairs(ROW).margin.tolist() == [3.0]
    assert float(bonbon_loss(pairs(ROW), alpha=0.1, beta=0.25)) == pytest.approx(1.0 + 0.9 * 1.0)


def test_a_loss_is_the_mean_over_pairs() -> None:
    other = (-3.0, -4.0, -3.0, -4.0)
    loss = partial(bonbon_loss, alpha=0.005, beta=0.02)
    both = float(loss(pairs(ROW, other)))
    assert both == pytest.approx((float(loss(pairs(ROW))) + float(loss(pairs(other)))) / 2)


@given(FOUR)
def test_only_the_margin_over_the_reference_matters(row: tuple[float, float, float, float]) -> None:
    chosen, rejected, reference_chosen, reference_rejected = row
    moved = (chosen, rejected, reference_chosen - 5, reference_rejected - 5)
    one, other = (bonbon_loss(pairs(each), 0.0, 0.3) for each in (row, moved))
    assert float(one) == pytest.approx(float(other))


@pytest.mark.parametrize(
    "loss",
    [
        partial(bonbon_loss, alpha=0.005, beta=0.0196),
        partial(bonbon_loss, alpha=0.5, beta=0.2),
    ],
)
def test_gradients_equal_finite_differences(loss: partial[Tensor]) -> None:
    random = torch.Generator().manual_seed(0)
    given_ = [torch.randn(3, generator=random, dtype=torch.float64) for _ in range(4)]
    learned = [t.requires_grad_() for t in given_[:2]]
    assert torch.autograd.gradcheck(lambda a, b: loss(PairLogProbs(a, b, *given_[2:])), learned)


def summed(log_probs: Tensor, lengths: list[int]) -> Tensor:
    return torch.stack([part.sum() for part in log_probs.split(lengths)])


def test_an_answers_log_prob_is_the_sum_over_its_labelled_tokens() -> None:
    logits = torch.log(torch.tensor([[[0.25, 0.75], [0.5, 0.5], [0.1, 0.9], [0.2, 0.8]]]))
    labels = torch.tensor([[NO_LABEL, 0, 1, 0]])
    found = summed(label_log_probs(logits, labels), [2, 2])
    assert found.tolist() == pytest.approx([math.log(0.5), math.log(0.9) + math.log(0.2)])


def test_a_pack_gives_the_same_log_probs_as_single_examples() -> None:
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(1, 9, 5, generator=random)
    labels = torch.randint(0, 5, (1, 9), generator=random)
    labels[0, 3] = NO_LABEL
    together = summed(label_log_probs(logits, labels), [4, 5])
    alone = [
        label_log_probs(logits[:, part], labels[:, part]).sum()
        for part in (slice(0, 4), slice(4, 9))
    ]
    assert together.tolist() == pytest.approx([float(one) for one in alone])
