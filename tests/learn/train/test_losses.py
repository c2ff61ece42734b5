from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.learn.data.encode import NO_LABEL
from pasta_lm.learn.train.losses import next_token_loss

SURE = [0.0, math.log(3.0)]  # a quarter, three quarters
EVEN = [5.0, 5.0]


@pytest.mark.parametrize(
    ("logits", "labels", "loss"),
    [
        ([SURE], [1], -math.log(0.75)),
        ([SURE], [0], -math.log(0.25)),
        ([EVEN], [0], math.log(2)),
        ([SURE, EVEN], [1, 0], (-math.log(0.75) + math.log(2)) / 2),
        ([SURE, EVEN], [1, NO_LABEL], -math.log(0.75)),  # the mean is over what has a label
        ([SURE, EVEN, SURE], [NO_LABEL, 1, 0], (math.log(2) - math.log(0.25)) / 2),
        ([[1e4, 0.0]], [0], 0.0),
        ([[1e4, 0.0]], [1], 1e4),
    ],
)
def test_the_loss_is_the_mean_cross_entropy_of_the_labels(
    logits: list[list[float]], labels: list[int], loss: float
) -> None:
    found = next_token_loss(torch.tensor([logits]), torch.tensor([labels]))
    assert found.shape == ()
    assert float(found) == pytest.approx(loss, abs=1e-6)


@given(st.lists(st.sampled_from([NO_LABEL, 0, 1, 2]), min_size=2, max_size=6), st.integers(0, 99))
def test_tokens_without_a_label_do_not_count_in_the_loss(labels: list[int], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, len(labels), 3, generator=random, requires_grad=True)
    labels[0] = 1
    loss = next_token_loss(logits, torch.tensor([labels]))
    kept = [index for index, label in enumerate(labels) if label != NO_LABEL]
    alone = next_token_loss(logits[:, kept], torch.tensor([[labels[index] for index in kept]]))
    assert float(loss.detach()) == pytest.approx(float(alone.detach()), abs=1e-6)
    (grad,) = torch.autograd.grad(loss, logits)
    assert [bool(row.any()) for row in grad[0]] == [label != NO_LABEL for label in labels]


def test_labels_are_not_shifted() -> None:
    logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0]]])
    right, shifted = (next_token_loss(logits, torch.tensor([ids])) for ids in ([0, 1], [1, 0]))
    assert right < 0.01
    assert shifted > 8


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(1, 50, 100, generator=torch.Generator().manual_seed(0))
    logits = logits.to(torch.bfloat16)
    labels = torch.arange(50)[None]
    loss = next_token_loss(logits, labels)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(next_token_loss(logits.float(), labels)))


@pytest.mark.parametrize("num_rows", [1, 127, 128, 129, 300])
def test_the_loss_in_parts_is_that_of_all_logits(num_rows: int) -> None:
    random = torch.Generator().manual_seed(num_rows)
    logits = torch.randn(1, num_rows, 7, generator=random, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 7, (1, num_rows), generator=random)
    labels[0, 1::5] = NO_LABEL
    ours = next_token_loss(logits, labels)
    whole = F.cross_entropy(logits[0], labels[0], ignore_index=NO_LABEL)
    torch.testing.assert_close(ours, whole)
    grads = (torch.autograd.grad(loss, logits)[0] for loss in (ours, whole))
    torch.testing.assert_close(*grads)


def test_the_loss_of_no_labels_is_nan() -> None:
    logits, labels = torch.zeros(1, 2, 3), torch.tensor([[NO_LABEL, NO_LABEL]])
    assert math.isnan(float(next_token_loss(logits, labels)))


@pytest.mark.parametrize(
    ("weights", "loss"),
    [
        ([1.0, 1.0], (math.log(2) - math.log(0.25)) / 2),
        ([1.0, 3.0], (math.log(2) - 3 * math.log(0.25)) / 4),
        ([0.0, 2.0], -math.log(0.25)),
    ],
)
def test_with_weights_the_loss_is_the_weighted_mean(weights: list[float], loss: float) -> None:
    logits, labels = torch.tensor([[SURE, EVEN, SURE]]), torch.tensor([[NO_LABEL, 1, 0]])
    found = next_token_loss(logits, labels, torch.tensor(weights))
    assert float(found) == pytest.approx(loss, abs=1e-6)
