"""The nats of labels and their mean; the head over parts of the rows gives what all logits give."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pasta_lm.learn.train import losses
from pasta_lm.learn.train.config import LossConfig
from pasta_lm.learn.train.losses import Batch, bonbon_loss, collate, label_nats, over_labels
from tests.architectures import ARCHITECTURES, loaded
from tests.learn.train.recipes import labelled_logits
from tests.learn.train.test_collate import answers, example_of, gradients

SURE = [0.0, math.log(3.0)]  # a quarter, three quarters
EVEN = [5.0, 5.0]


@pytest.mark.parametrize(
    ("logits", "labels", "nats"),
    [
        ([SURE, SURE], [1, 0], [-math.log(0.75), -math.log(0.25)]),  # labels are not shifted
        ([EVEN], [0], [math.log(2)]),
        ([[1e4, 0.0], [1e4, 0.0]], [0, 1], [0.0, 1e4]),
    ],
)
def test_nats_are_those_of_the_softmax(
    logits: list[list[float]], labels: list[int], nats: list[float]
) -> None:
    for dtype in (torch.float32, torch.float64):
        found = label_nats(torch.tensor(logits, dtype=dtype), torch.tensor(labels))
        assert found.dtype == dtype
        assert found.tolist() == pytest.approx(nats, abs=1e-6)


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(50, 100, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    found = label_nats(logits, torch.arange(50))
    assert found.dtype == torch.float32
    assert torch.equal(found, label_nats(logits.float(), torch.arange(50)))


# --- the head over parts of the rows


def batch_of(name: str) -> Batch:
    return collate([[example_of(name, document) for document in answers(name)[:2]]])


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("rows", [7, 10_000])
def test_nats_and_gradients_are_those_of_all_logits_at_once(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = loaded(name).model, batch_of(name)
    monkeypatch.setattr(losses, "MAX_LOGITS", rows * loaded(name).vocab_size)
    ours = over_labels(model, batch, label_nats)
    plain = F.cross_entropy(*labelled_logits(model, batch), reduction="none")
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    for one, other in zip(
        gradients(model, ours.mean()), gradients(model, plain.mean()), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_no_more_logits_than_the_bound_exist_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, vocab_size = loaded("llama").model, loaded("llama").vocab_size
    monkeypatch.setattr(losses, "MAX_LOGITS", 10 * vocab_size)
    shapes: list[torch.Size] = []

    def note(_: nn.Module, __: object, logits: Tensor) -> None:
        shapes.append(logits.shape[1:])

    head = model.get_output_embeddings()
    handle = head.register_forward_hook(note)
    nats_M = over_labels(model, batch_of("llama"), label_nats)
    num_parts = math.ceil(len(nats_M) / 10)
    assert num_parts > 3
    assert shapes == [*[(10, vocab_size)] * (num_parts - 1), shapes[num_parts - 1]]
    nats_M.mean().backward()  # type: ignore[no-untyped-call]
    assert len(shapes) == 2 * num_parts  # each part again, instead of being kept
    handle.remove()
    model.zero_grad()


# --- preference


@pytest.mark.parametrize(
    ("num_samples", "beta"),
    # n = 2: 1 / (2 * 1 * 1); n = 3: 1 / (2 * 2 * 3/2); n = 10: H_9 = 7129/2520
    [(2, 1 / 2), (3, 1 / 6), (5, 1 / (8 * 25 / 12)), (10, 0.0196382)],
)
def test_beta_equals_bonbons_formula_unless_the_recipe_has_one(
    num_samples: int, beta: float
) -> None:
    assert LossConfig().beta_for(num_samples) == pytest.approx(beta, rel=1e-5)
    assert LossConfig(beta=0.3).beta_for(num_samples) == 0.3


def test_a_single_sample_has_no_beta() -> None:
    with pytest.raises(ValueError, match="no pair"):
        LossConfig().beta_for(1)


def test_bonbon_losses_equal_values_computed_by_hand() -> None:
    chosen, margin = torch.tensor([-10.0, -3.0]), torch.tensor([3.0, 0.0])
    # 1.0 + 0.9 * 1.0 and 0.3 + 0.9 * 4.0
    assert float(bonbon_loss(chosen, margin, alpha=0.1, beta=0.25)) == pytest.approx(2.9)


@pytest.mark.parametrize(("alpha", "beta"), [(0.005, 0.0196), (0.5, 0.2)])
def test_bonbon_gradients_equal_finite_differences(alpha: float, beta: float) -> None:
    random = torch.Generator().manual_seed(0)
    chosen, margin = torch.randn(2, 3, generator=random, dtype=torch.float64).requires_grad_()
    loss = partial(bonbon_loss, alpha=alpha, beta=beta)
    assert torch.autograd.gradcheck(loss, (chosen, margin))
