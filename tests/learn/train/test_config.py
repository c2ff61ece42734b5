"""Recipes of stage one: every key is read, and contradictions are named."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.learn.train.config import ModelConfig, PreferenceConfig, SftConfig, TrainConfig
from pasta_lm.recipe import read_recipe, toml_of

GOOD: dict[str, Any] = {"model": {"base": "some/model"}, "data": {"file": "data.jsonl"}}
GOOD["train"] = {"out": "build/x", "steps": 10}
RUNS = Path(__file__).parents[3] / "runs" / "smollm2"
RECIPES = sorted(path for path in RUNS.glob("*.toml") if path.stem != "preference")  # of stage two
CONTINUE = {"train.positions": "continue"}
RISE, RATE = "train.max_own_text_rise", "train.tag_learning_rate"
FREEZE, WEIGHT = "train.freeze_old_rows", "train.decision_weight"
POINTS = {**CONTINUE, "data.rule": "sot"}


def recipe(changes: dict[str, Any], good: dict[str, Any] = GOOD) -> str:
    """Return a good recipe with keys changed by their path; None leaves a key out."""
    data = deepcopy(good)
    for path, value in changes.items():
        *tables, key = path.split(".")
        table = data
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = value
    return toml_of(data).replace("NaN", "nan")


def read(tmp_path: Path, text: str, changes: Sequence[str] = ()) -> SftConfig:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return read_recipe(path, SftConfig, changes)


def test_every_kind_of_key_is_read(tmp_path: Path) -> None:
    text = """
    [model]
    base = "tiny"
    [data]
    plain = true
    max_tokens = 512
    file = ["a.jsonl", "b.jsonl"]
    exclude = "ids.txt"
    [train]
    out = "build/x"
    steps = 200
    learning_rate = 1            # a whole number is a number
    schedule = "cosine"
    warmup = 0.1
    positions = "continue"
    """
    config = read(tmp_path, text)
    assert config.model == ModelConfig(base="tiny")
    assert (config.data.plain, config.data.max_tokens) == (True, 512)
    assert config.data.paths == [Path("a.jsonl"), Path("b.jsonl")]
    assert config.data.exclude_paths == [Path("ids.txt")]
    rate: dict[str, Any] = {"learning_rate": 1.0, "schedule": "cosine", "warmup": 0.1}
    assert config.train == TrainConfig(out="build/x", steps=200, positions="continue", **rate)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_the_recipes_that_we_ship_can_be_read(path: Path) -> None:
    assert PositionStrategy(read_recipe(path, SftConfig).train.positions) in PositionStrategy


POSITIVE = ("learning_rate", "tag_learning_rate", "accumulate", "decision_weight", "log_steps")
POSITIVE += ("save_steps", "steps")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.out": None}, "train.out is missing"),
        ({"data": {}}, "data.file is missing"),
        ({"data.file": []}, "data.file names no file"),
        ({"train.stepz": 3}, "unknown key train.stepz"),
        ({"train.steps": "10"}, "train.steps must be a valid integer, not '10'"),
        ({"model": {}}, "model.base is missing"),
        ({"train.steps": None}, "[train] needs exactly one of steps and epochs"),
        ({"train.epochs": 2}, "[train] needs exactly one of steps and epochs"),
        ({"train.schedule": "warmup"}, "train.schedule is 'warmup'"),
        ({"data.max_tokens": 0}, "data.max_tokens must be above 0"),
        *(({f"train.{key}": 0}, f"train.{key} must be above 0") for key in POSITIVE),
        ({"train.steps": None, "train.epochs": -1}, "train.epochs must be above 0"),
        *(({f"lora.{key}": -1}, f"lora.{key} must be above 0") for key in ("rank", "alpha")),
        ({"lora.dropout": 1}, "lora.dropout must be at least 0 and below 1"),
        ({"train.save": "adapter"}, 'train.save = "adapter" needs a table [lora]'),
        ({RATE: 1, "lora.trained_tokens": "none"}, f"{RATE} would be ignored: no rows learn"),
        ({FREEZE: True, "lora": {}}, f"{FREEZE} would be ignored: [lora] freezes them in any"),
        ({**POINTS, WEIGHT: 2}, f"{WEIGHT} would be ignored: points have no decisions of main"),
        ({RISE: 1}, f"{RISE} would be ignored: there is no data.own_text"),
        ({**POINTS, "train.thoughts": "loss"}, "train.thoughts would be ignored: points have none"),
        ({"train.positions": "rotate"}, "train.positions is 'rotate'"),
        *(({"train.warmup": n}, "train.warmup must be at least 0 and below 1") for n in (-0.1, 1)),
        ({"train.schedule": "constant", "train.warmup": 0.1}, "train.warmup would be ignored: a "),
        ({**CONTINUE, "data.rule": "points"}, "data.rule is 'points'"),
        ({**POINTS, "data.plain": True}, "data.rule would be ignored: it rewrites answers with"),
        ({"data.rule": "apar"}, "apar makes no promises: positions 'predict' need their lengths"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe(changes))
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("changes", "strategy"),
    [({}, "pasta"), ({"data.rule": "apar"}, "apar"), ({"data.rule": "sot"}, "sot")],
)
def test_a_rule_trains_the_strategy_that_it_is_of(
    tmp_path: Path, changes: dict[str, Any], strategy: str
) -> None:
    config = read(tmp_path, recipe({**CONTINUE, **changes}))
    assert config.data.trained_strategy == strategy


def test_a_join_needs_positions_that_leave_no_gaps(tmp_path: Path) -> None:
    changes = {**CONTINUE, "train.join": "recompute"}
    assert read(tmp_path, recipe(changes)).train.join == "recompute"
    with pytest.raises(UsageError, match="'predict' does"):
        read(tmp_path, recipe({**changes, "train.positions": "predict"}))


def test_keys_can_be_changed_and_removed_by_the_command(tmp_path: Path) -> None:
    config = read(tmp_path, recipe({}), ["model.base=other", "train.steps=", "train.epochs=5"])
    assert config.model == ModelConfig(base="other")
    assert (config.train.steps, config.train.epochs) == (None, 5.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.steps", "a change is table.key=value, not 'train.steps'"),
        ("train..steps=3", "a change is table.key=value, not 'train..steps=3'"),
        ("train.steps=3\nx", "train.steps must be a valid integer, not '3\\nx'"),
        ("train.out.x=3", "train.out must be a table"),
        ("train.out=", "train.out is missing"),
    ],
)
def test_a_wrong_change_is_named(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe({}), [change])
    assert caught.value.message == message


def test_an_unreadable_recipe_is_named(tmp_path: Path) -> None:
    latin, broken = tmp_path / "latin.toml", tmp_path / "broken.toml"
    latin.write_bytes(b"x = '\xe9'")
    broken.write_text("[model\n", encoding="utf-8")
    for path in (latin, broken, tmp_path):
        with pytest.raises(UsageError, match="cannot be read: ") as caught:
            read_recipe(path, SftConfig)
        assert str(path) in caught.value.message


GOOD_PAIRS: dict[str, dict[str, Any]] = {
    "model": {"base": "sft", "baseline": "plain"},
    "data": {"records": {"file": "answers.jsonl"}},
    "score": {"quality_weight": 4},
    "judge": {"model": "a-judge", "base_url": "https://example.org/v1"},
    "train": {"out": "build/x", "epochs": 1},
}
LLM = GOOD_PAIRS["judge"]
FILE: dict[str, Any] = {"data": {"file": "pairs.jsonl"}, "model.baseline": None}
FILE |= {"score": None, "judge": None, "train.rounds": 1}


def read_preference(tmp_path: Path, changes: dict[str, Any]) -> PreferenceConfig:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe(changes, GOOD_PAIRS), encoding="utf-8")
    return read_recipe(path, PreferenceConfig)


@pytest.mark.parametrize(
    "changes",
    [
        FILE,
        {**FILE, "rollouts": {"samples": 4}},
        {"score.quality_weight": 0},
        {"loss": {"beta": "auto"}},
        {"judge": {**LLM, "method": "logprobs", "api_key_env": "KEY", "max_in_flight": 8}},
        {"judge": {"file": "verdicts.jsonl"}},
    ],
)
def test_valid_preference_recipes_are_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    read_preference(tmp_path, changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score": None}, "[score] is missing: samples need a quality_weight"),
        ({"judge": None}, "[judge] is missing: it compares the samples"),
        ({"data": {}}, "[data] needs exactly one of file and records"),
        ({"score.quality_weight": -1}, "score.quality_weight must be at least 0"),
        ({"score.quality_weight": float("nan")}, "score.quality_weight must be at least 0"),
        ({"score.smoothing": 0}, "score.smoothing must be above 0"),
        ({"model.baseline": None}, "model.baseline is missing: its answers are compared"),
        ({"data.file": "f"}, "[data] needs exactly one of file and records"),
        ({"data.records.num_prompts": 0}, "data.records.num_prompts must be above 0"),
        ({"data.max_tokens": 0}, "data.max_tokens must be above 0"),
        ({"rollouts": {"samples": 1}}, "rollouts.samples must be at least 2"),
        ({"rollouts": {"temperature": 0}}, "rollouts.temperature must be above 0"),
        ({"loss": {"beta": "rule"}}, "loss.beta is 'rule'"),
        ({"loss": {"beta": 0}}, "loss.beta must be above 0"),
        ({"loss": {"beta": True}}, "loss.beta must be a valid number or a valid string, not True"),
        ({"loss": {"alpha": 1.5}}, "loss.alpha must be between 0 and 1"),
        ({"judge": {**LLM, "max_missing": 1}}, "judge.max_missing must be at least 0 and below 1"),
        ({"judge": {**LLM, "timeout_s": 0}}, "judge.timeout_s must be above 0"),
        ({"judge": {"model": "a-judge"}}, "judge.base_url is missing"),
        ({"judge": {**LLM, "file": "v.jsonl"}}, "judge.base_url would be ignored: judge.file has"),
        ({**FILE, "judge": LLM}, "[judge] would be ignored: data.file has scores"),
        ({"train.rounds": 0}, "train.rounds must be above 0"),
        ({"train.epochs": None}, "[train] needs exactly one of steps and epochs"),
        ({**FILE, "train.rounds": 2}, "a file of pairs has one round"),
        ({"train.first_promise_weight": 3}, "train.first_promise_weight would be ignored: it be"),
        ({RISE: 1}, f"{RISE} would be ignored: it belongs to stage one"),
        ({**FILE, "score": {"quality_weight": 1}}, "[score] would be ignored"),
        ({**FILE, "rollouts": {"temperature": 0.5}}, "[rollouts] would be ignored"),
        ({**FILE, "model.baseline": "b"}, "model.baseline would be ignored"),
    ],
)
def test_invalid_preference_recipes_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_preference(tmp_path, changes)
    assert caught.value.message.startswith(message)
