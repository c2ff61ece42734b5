"""The nats of labels and their mean; the head over parts of the rows gives what all logits give."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pasta_lm.learn.train import losses
from pasta_lm.learn.train.config import LoraConfig, LossConfig, ModelConfig, SftConfig
from pasta_lm.learn.train.losses import (
    Batch,
    bonbon_loss,
    collate,
    label_nats,
    over_labels,
    weighted_mean,
)
from pasta_lm.learn.train.sft import train_sft
from pasta_lm.learn.train.trainer import scale_updates
from tests.architectures import every_architecture, loaded
from tests.learn.train.recipes import begin, labelled_logits, sft, weights
from tests.learn.train.test_collate import answers, example_of, gradients


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(50, 100, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    found = label_nats(logits, torch.arange(50))
    assert found.dtype == torch.float32
    assert torch.equal(found, label_nats(logits.float(), torch.arange(50)))


def batch_of(name: str) -> Batch:
    return collate([[example_of(name, document) for document in answers(name)[:2]]])


@every_architecture
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


@pytest.mark.parametrize(
    ("num_samples", "beta"),
    # n = 2: 1 / (2 * 1 * 1); n = 3: 1 / (2 * 2 * 3/2); n = 10: H_9 = 7129/2520
    [(2, 1 / 2), (3, 1 / 6), (5, 1 / (8 * 25 / 12)), (10, 0.0196382)],
)
def test_beta_equals_bonbons_formula_unless_the_recipe_has_one(
    num_samples: int, beta: float
) -> None:
    assert LossConfig().for_samples(num_samples).beta == pytest.approx(beta, rel=1e-5)
    assert LossConfig(beta=0.3).for_samples(num_samples).beta == 0.3


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


RATE, TAG_RATE = 2e-3, 1e-2
LORA = LoraConfig(rank=4, targets=("q_proj", "down_proj"))


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    return train_sft(sft(begin(folder, tie_word_embeddings=request.param), folder / "out", steps=1))


def recipe(base: Path, out: Path, **train: object) -> SftConfig:
    settings = {"learning_rate": RATE, "tag_learning_rate": TAG_RATE, **train}
    return sft(ModelConfig(base=str(base)), out, **settings)


def tag_ids(folder: Path) -> list[int]:
    ids: dict[str, int] = json.loads((folder / "pasta_config.json").read_text())["piece_ids"]
    return sorted(ids.values())


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_step_moves_the_tag_rows_as_far_as_their_rate_says(
    base: Path, tmp_path: Path, lora: LoraConfig | None
) -> None:
    both, slow = (
        replace(recipe(base, tmp_path / name, steps=1, tag_learning_rate=rate), lora=lora)
        for name, rate in [("both", TAG_RATE), ("slow", None)]
    )
    before, fast, plain = weights(base), weights(train_sft(both)), weights(train_sft(slow))
    ids = tag_ids(base)
    for name, weight in before.items():
        moved, expected = fast[name] - weight, plain[name] - weight
        if "embed" in name or "lm_head" in name:
            assert expected[ids].abs().min(dim=1).values.max() > 0
            expected[ids] *= TAG_RATE / RATE
        assert torch.allclose(moved, expected, atol=1e-6), name


def test_frozen_rows_of_old_tokens_do_not_move_by_a_bit(base: Path, tmp_path: Path) -> None:
    before = weights(base)
    after = weights(train_sft(recipe(base, tmp_path, steps=3, freeze_old_rows=True)))
    ids = tag_ids(base)
    for name, weight in before.items():
        moved = (after[name] - weight).abs().sum(dim=-1)
        if "embed" in name or "lm_head" in name:
            assert set(moved.nonzero()[:, 0].tolist()) <= {*ids}
            assert moved.any()
        else:
            assert moved.any(), name


def test_many_steps_are_those_of_an_optimiser_with_that_rate() -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(6, 3), torch.randn(5, 6, 3)
    ids = torch.tensor([1, 4])

    def steps(rate: float, ratio: float | None = None) -> Tensor:
        weight = nn.Parameter(start.clone())
        optimizer = torch.optim.AdamW([weight], lr=rate, weight_decay=0.1)
        # AdamW treats each number alone; only decay and the step's size know the weight.
        scale_updates(optimizer, [] if ratio is None else [(weight, ids, ratio)])
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        return weight.detach()

    slow, fast = steps(RATE), steps(5 * RATE)
    for ratio, rows in [(5.0, fast), (0.0, start), (1.0, slow)]:
        expected = slow.clone()
        expected[ids] = rows[ids]
        assert torch.allclose(steps(RATE, ratio), expected, atol=1e-6)


def test_the_mean_weighs_each_label() -> None:
    nats, weights_M = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 1.0, 2.0])
    assert float(weighted_mean(nats, weights_M)) == (1 + 2 + 2 * 4) / 4
    assert float(weighted_mean(nats, None)) == pytest.approx(7 / 3)
