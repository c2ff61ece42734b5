"""What teaches the tags sooner: a rate of their rows' own, and the weight of main's decisions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pasta_lm.errors import UsageError
from pasta_lm.learn.data.encode import NO_LABEL
from pasta_lm.learn.train.config import DataConfig, LoraConfig, ModelConfig, SftConfig
from pasta_lm.learn.train.learner import load_learner
from pasta_lm.learn.train.losses import collate
from pasta_lm.learn.train.sft import train_sft
from pasta_lm.learn.train.trainer import RowRate, scale_updates
from tests.learn.train.recipes import begin, labelled_logits, log, packs, sft, weights

RATE, TAG_RATE = 2e-3, 1e-2
LORA = LoraConfig(rank=4, targets=("q_proj", "down_proj"))


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    return train_sft(sft(begin(folder, tie_word_embeddings=request.param), folder / "out", steps=1))


def recipe(base: Path, out: Path, **train: object) -> SftConfig:
    settings = {"learning_rate": RATE, "tag_learning_rate": TAG_RATE, "weight_decay": 0.1, **train}
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
        scale_updates(optimizer, [] if ratio is None else [RowRate(weight, ids, ratio)])
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        return weight.detach()

    slow, fast = steps(RATE), steps(5 * RATE)
    for ratio, rows in [(5.0, fast), (0.0, start), (1.0, slow)]:
        expected = slow.clone()
        expected[ids] = rows[ids]
        assert torch.allclose(steps(RATE, ratio), expected, atol=1e-6)


def test_the_loss_is_the_mean_that_weighs_decisions(base: Path, tmp_path: Path) -> None:
    config = recipe(base, tmp_path, steps=1, decision_weight=8.0)
    train_sft(config)
    learner = load_learner(config.model)
    pack = packs(config, learner)[0]
    logits, labels = labelled_logits(learner.model, collate([pack]))
    losses = -logits.log_softmax(dim=1).gather(1, labels[:, None])[:, 0]
    weights_M = torch.tensor(
        [
            8.0 if slot in example.decisions else 1.0
            for example in pack
            for slot, label in enumerate(example.labels)
            if label != NO_LABEL
        ]
    )
    expected = float((losses @ weights_M / weights_M.sum()).detach())
    assert log(config)[0]["loss"] == pytest.approx(expected, abs=1e-5)
    assert abs(expected - float(losses.detach().mean())) > 1e-4


# --- refused


@pytest.mark.parametrize(
    ("train", "lora", "reason"),
    [
        ({"tag_learning_rate": 0.0}, None, "train.tag_learning_rate must be above 0"),
        ({"decision_weight": -1.0}, None, "train.decision_weight must be above 0"),
        ({}, LoraConfig(trained_tokens="none"), "train.tag_learning_rate would be ignored"),
        ({"freeze_old_rows": True}, LORA, "train.freeze_old_rows would be ignored"),
    ],
)
def test_unusable_rates_and_weights_are_refused(
    tmp_path: Path, train: dict[str, object], lora: LoraConfig | None, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        replace(recipe(tmp_path, tmp_path, **train), lora=lora)


def test_points_have_no_decisions_to_weigh(tmp_path: Path) -> None:
    data = DataConfig(file="a.jsonl", rule="sot")
    with pytest.raises(UsageError, match="train.decision_weight would be ignored"):
        sft(ModelConfig(base="b"), tmp_path, data, decision_weight=2.0, positions="continue")
