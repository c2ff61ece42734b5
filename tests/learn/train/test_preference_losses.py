from __future__ import annotations

from functools import partial

import pytest
import torch

from pasta_lm.learn.train.losses import bonbon_loss
from pasta_lm.learn.train.preference_config import bonbon_beta


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


def test_losses_equal_values_computed_by_hand() -> None:
    chosen, margin = torch.tensor([-10.0, -3.0]), torch.tensor([3.0, 0.0])
    # 1.0 + 0.9 * 1.0 and 0.3 + 0.9 * 4.0
    assert float(bonbon_loss(chosen, margin, alpha=0.1, beta=0.25)) == pytest.approx(2.9)


@pytest.mark.parametrize(("alpha", "beta"), [(0.005, 0.0196), (0.5, 0.2)])
def test_gradients_equal_finite_differences(alpha: float, beta: float) -> None:
    random = torch.Generator().manual_seed(0)
    chosen, margin = torch.randn(2, 3, generator=random, dtype=torch.float64).requires_grad_()
    loss = partial(bonbon_loss, alpha=alpha, beta=beta)
    assert torch.autograd.gradcheck(loss, (chosen, margin))
