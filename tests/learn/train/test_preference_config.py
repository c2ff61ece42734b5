"""Recipes of stage two: valid ones are read, and errors name the wrong key."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import UsageError
from pasta_lm.learn.train.config import (
    LossConfig,
    PairsConfig,
    PreferenceConfig,
    PreferenceTrainConfig,
    RecordsConfig,
    RolloutsConfig,
    ScoreConfig,
    StartConfig,
)
from pasta_lm.recipe import read_recipe
from tests.learn.train.test_config import recipe

GOOD: dict[str, dict[str, Any]] = {
    "model": {"base": "sft", "baseline": "plain"},
    "data": {"records": {"file": "answers.jsonl"}},
    "score": {"quality_weight": 4},
    "train": {"out": "build/x", "epochs": 1},
}
LLM = {"model": "a-judge", "base_url": "https://example.org/v1"}
FILE: dict[str, Any] = {
    "data": {"file": "pairs.jsonl"},
    "model.baseline": None,
    "score": None,
    "train.rounds": 1,
}


def read(tmp_path: Path, changes: dict[str, Any]) -> PreferenceConfig:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe(changes, GOOD), encoding="utf-8")
    return read_recipe(path, PreferenceConfig)


def test_every_key_of_a_recipe_is_read(tmp_path: Path) -> None:
    changes = {
        "data": {"records": {"file": "a", "num_prompts": 9, "seed": 3}, "max_tokens": 512},
        "rollouts": {"samples": 4, "temperature": 0.8, "max_tokens": 64, "pool_tokens": 4096},
        "score": {"quality_weight": inf, "smoothing": 0.5},
        "loss": {"alpha": 0.1, "beta": 1},
        "train.rounds": 3,
        "train.weight_decay": 0.1,
    }
    assert read(tmp_path, changes) == PreferenceConfig(
        model=StartConfig(base="sft", baseline="plain"),
        data=PairsConfig(records=RecordsConfig(file="a", num_prompts=9, seed=3), max_tokens=512),
        rollouts=RolloutsConfig(samples=4, temperature=0.8, max_tokens=64, pool_tokens=4096),
        score=ScoreConfig(quality_weight=inf, smoothing=0.5),
        loss=LossConfig(alpha=0.1, beta=1.0),
        train=PreferenceTrainConfig(out="build/x", epochs=1, rounds=3, weight_decay=0.1),
    )


@pytest.mark.parametrize(
    "changes",
    [
        FILE,
        {**FILE, "rollouts": {"samples": 4}},
        {"score.quality_weight": 0},
        {"loss": {"beta": "auto"}},
        {"judge": {**LLM, "method": "logprobs", "api_key_env": "KEY", "max_in_flight": 8}},
    ],
)
def test_valid_preference_recipes_are_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    read(tmp_path, changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score.qualty_weight": 1}, "unknown key score.qualty_weight"),
        ({"score": None}, "[score] is missing: samples need a quality_weight"),
        ({"score.quality_weight": -1}, "score.quality_weight must be at least 0"),
        ({"score.quality_weight": float("nan")}, "score.quality_weight must be at least 0"),
        ({"score.quality_weight": "inf"}, "score.quality_weight must be float, not 'inf'"),
        ({"score.smoothing": 0}, "score.smoothing must be above 0"),
        ({"model.baseline": None}, "model.baseline is missing: its answers are compared"),
        ({"data.file": "f"}, "[data] needs exactly one of file and records"),
        ({"data": {"records": {}}}, "data.records.file is missing"),
        ({"data.records.num_prompts": 0}, "data.records.num_prompts must be above 0"),
        ({"data.max_tokens": 0}, "data.max_tokens must be above 0"),
        ({"rollouts": {"samples": 1}}, "rollouts.samples must be at least 2"),
        ({"rollouts": {"temperature": 0}}, "rollouts.temperature must be above 0"),
        ({"loss": {"beta": "rule"}}, "loss.beta is 'rule'"),
        ({"loss": {"beta": 0}}, "loss.beta must be above 0"),
        ({"loss": {"beta": True}}, "loss.beta must be float or str, not True"),
        ({"loss": {"alpha": 1.5}}, "loss.alpha must be between 0 and 1"),
        ({"judge": {"model": "gpt"}}, "judge.base_url is missing"),
        ({"judge": {**LLM, "method": "grades"}}, "judge.method is 'grades'"),
        ({"judge": {**LLM, "max_missing": 1}}, "judge.max_missing must be at least 0 and below 1"),
        ({"judge": {**LLM, "timeout_s": 0}}, "judge.timeout_s must be above 0"),
        ({**FILE, "judge": LLM}, "[judge] would be ignored: data.file has scores"),
        ({"train.rounds": 0}, "train.rounds must be above 0"),
        ({"train.epochs": None}, "[train] needs exactly one of steps and epochs"),
        ({**FILE, "train.rounds": 2}, "a file of pairs has one round"),
        ({**FILE, "score": {"quality_weight": 1}}, "[score] would be ignored"),
        ({**FILE, "rollouts": {"temperature": 0.5}}, "[rollouts] would be ignored"),
        ({**FILE, "model.baseline": "b"}, "model.baseline would be ignored"),
    ],
)
def test_invalid_preference_recipes_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, changes)
    assert caught.value.message.startswith(message)
