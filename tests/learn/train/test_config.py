"""Recipes of stage one: valid ones are read, and errors name the wrong key."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import UsageError
from pasta_lm.interpreter import PositionStrategy
from pasta_lm.learn.train.config import (
    DataConfig,
    ModelConfig,
    RandomConfig,
    SftConfig,
    TrainConfig,
)
from pasta_lm.recipe import read_recipe

GOOD: dict[str, Any] = {
    "model": {"base": "some/model"},
    "data": {"file": "data.jsonl"},
    "train": {"out": "build/x", "steps": 10},
}
RUNS = Path(__file__).parents[3] / "runs"
RECIPES = sorted(
    path
    for folder in ("recipes/paper", "smollm2")
    for path in (RUNS / folder).glob("*.toml")
    if path.stem not in {"bon", "preference"}  # of stage two
)
FILE = {"file": "data.jsonl"}
NONE: Any = object()
"""Stands for a key that is left out."""
RANDOM = {"random": {"architecture": "a.json", "tokenizer": "t"}}


def toml(value: object) -> str:
    """Write a value as TOML does; tables inline."""
    match value:
        case dict():
            return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
        case bool():
            return str(value).lower()
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case str():
            return f'"{value}"'
        case _:
            return str(value)


def recipe(changes: dict[str, Any]) -> str:
    """Return the good recipe with some keys, given by their path, changed."""
    data = deepcopy(GOOD)
    for path, value in changes.items():
        *tables, key = path.split(".")
        table = data
        for name in tables:
            table = table.setdefault(name, {})
        if value is NONE:
            del table[key]
        else:
            table[key] = value
    return "\n".join(f"{key} = {toml(value)}" for key, value in data.items())


def read(tmp_path: Path, text: str, changes: Sequence[str] = ()) -> SftConfig:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return read_recipe(path, SftConfig, changes)


def test_defaults_are_as_documented(tmp_path: Path) -> None:
    assert read(tmp_path, recipe({})) == SftConfig(
        model=ModelConfig(base="some/model"),
        data=DataConfig(file="data.jsonl"),
        train=TrainConfig(out="build/x", steps=10),
    )


def test_every_key_of_a_recipe_is_read(tmp_path: Path) -> None:
    text = """
    [model.random]
    architecture = "tiny.json"
    tokenizer = "build/tokenizer"
    [data]
    plain = true
    max_tokens = 512
    file = ["a.jsonl", "b.jsonl"]
    [train]
    out = "build/x"
    steps = 200
    learning_rate = 1            # a whole number is a number
    schedule = "warmup_stable_decay"
    warmup = 0.1
    decay = 0.3
    positions = "continue"
    tensorboard = true
    """
    found = read(tmp_path, text)
    assert found.model == ModelConfig(
        random=RandomConfig(architecture="tiny.json", tokenizer="build/tokenizer")
    )
    assert found.data == DataConfig(plain=True, max_tokens=512, file=("a.jsonl", "b.jsonl"))
    assert found.train == TrainConfig(
        out="build/x",
        steps=200,
        learning_rate=1.0,
        schedule="warmup_stable_decay",
        warmup=0.1,
        decay=0.3,
        positions="continue",
        tensorboard=True,
    )
    assert type(found.train.learning_rate) is float


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_the_recipes_that_we_ship_can_be_read(path: Path) -> None:
    found = read_recipe(path, SftConfig)
    assert PositionStrategy(found.train.positions) in PositionStrategy


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"train.learning_rat": 1.0}, "unknown key train.learning_rat", "'learning_rate'"),
        ({"train.stepz": 3}, "unknown key train.stepz", "'steps'"),
        ({"trian": {}}, "unknown key trian", "'train'"),
        ({"data.max_token": 9}, "unknown key data.max_token", "'max_tokens'"),
        ({"model.xyzzy": 1}, "unknown key model.xyzzy", "known: base, random"),
    ],
)
def test_an_unknown_key_is_named_with_a_suggestion(
    tmp_path: Path, changes: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe(changes))
    assert caught.value.message == message
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.steps": 1.5}, "train.steps must be int, not 1.5"),
        ({"train.steps": "10"}, "train.steps must be int, not '10'"),
        ({"train.steps": True}, "train.steps must be int, not True"),
        ({"train.learning_rate": "1e-5"}, "train.learning_rate must be float, not '1e-5'"),
        ({"train.learning_rate": True}, "train.learning_rate must be float, not True"),
        ({"train.out": 3}, "train.out must be str, not 3"),
        ({"train.tensorboard": 1}, "train.tensorboard must be bool, not 1"),
        ({"data.plain": "yes"}, "data.plain must be bool, not 'yes'"),
        ({"data.max_tokens": [1]}, "data.max_tokens must be int, not [1]"),
        ({"model": "some/model"}, "model must be a table, not 'some/model'"),
    ],
)
def test_a_value_of_another_type_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe(changes))
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.out": NONE}, "train.out is missing"),
        ({"train": NONE}, "train is missing"),
        ({"model": NONE}, "model is missing"),
        ({"data": NONE}, "data is missing"),
        ({"data": {}}, "data.file is missing"),
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe(changes))
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.base": NONE}, "[model] needs exactly one of base and random"),
        ({"model": {"base": "b", **RANDOM}}, "[model] needs exactly one of base and random"),
        ({"train.steps": NONE}, "[train] needs exactly one of steps and epochs"),
        ({"train.epochs": 2}, "[train] needs exactly one of steps and epochs"),
        ({"model": {"random": {"architecture": "a.json"}}}, "model.random.tokenizer is missing"),
        (
            {"model": RANDOM, "lora": {}},
            "[lora] needs model.base: random weights must all be trained",
        ),
        (
            {"train.schedule": "warmup_stable_decay"},
            "warmup_stable_decay needs [train] steps, and decay between 0 and 1",
        ),
        (
            {"train.schedule": "warmup_stable_decay", "train.decay": 1.0},
            "warmup_stable_decay needs [train] steps, and decay between 0 and 1",
        ),
        (
            {"train.schedule": "warmup_stable_decay", "train.decay": 0.2, "data": FILE}
            | {"train.steps": NONE, "train.epochs": 2},
            "warmup_stable_decay needs [train] steps, and decay between 0 and 1",
        ),
    ],
)
def test_conflicting_keys_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe(changes))
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("key", "value", "option"),
    [
        ("train.schedule", "warmup", "warmup_stable_decay"),
        ("train.dtype", "float16", "bfloat16"),
        ("train.positions", "guess", "predict"),
        ("train.join", "split", "recompute"),
        ("lora.trained_tokens", "all", "tags"),
    ],
)
def test_an_unknown_choice_is_named_with_the_known_ones(
    tmp_path: Path, key: str, value: str, option: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe({key: value}))
    assert caught.value.message == f"{key} is {value!r}"
    assert option in str(caught.value.hint)


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(
    ("key", "rest"),
    [
        ("train.learning_rate", {}),
        ("train.accumulate", {}),
        ("train.log_steps", {}),
        ("train.save_steps", {}),
        ("train.steps", {}),
        ("train.steps", {"data": FILE}),
        ("train.epochs", {"data": FILE, "train.steps": NONE}),
        ("data.max_tokens", {}),
    ],
)
def test_a_value_that_is_not_positive_is_named(
    tmp_path: Path, key: str, value: int, rest: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe({**rest, key: value}))
    assert caught.value.message == f"{key} must be above 0"


@pytest.mark.parametrize(
    ("key", "value", "bounds"),
    [
        ("train.warmup", -0.1, "at least 0 and below 1"),
        ("train.warmup", 100, "at least 0 and below 1"),
        ("train.warmup", 1, "at least 0 and below 1"),
        ("train.decay", -0.1, "at least 0 and below 1"),
        ("train.decay", 1.0, "at least 0 and below 1"),
    ],
)
def test_a_share_above_one_is_refused(tmp_path: Path, key: str, value: float, bounds: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe({key: value}))
    assert caught.value.message == f"{key} must be {bounds}"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"train.decay": 0.2}, "train.decay"),
        ({"train.schedule": "cosine", "train.decay": 0.2}, "train.decay"),
        ({"train.schedule": "constant", "train.warmup": 0.1}, "train.warmup"),
    ],
)
def test_a_key_that_would_be_ignored_is_named(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(UsageError, match=f"{key} would be ignored: ") as caught:
        read(tmp_path, recipe(changes))
    assert caught.value.hint == "leave it out"


@pytest.mark.parametrize(
    "changes",
    [
        {"train.schedule": "constant", "train.warmup": 0.0},
        {"data": FILE, "train.steps": NONE, "train.epochs": 1.5},
        {"data": FILE},
        {"train.warmup": 0, "train.decay": 0.0},
        {"model": RANDOM},
        {"train.schedule": "warmup_stable_decay", "train.decay": 0.5},
    ],
)
def test_valid_recipes_are_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    read(tmp_path, recipe(changes))


def test_an_unreadable_recipe_is_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"x = '\xe9'")
    broken = tmp_path / "broken.toml"
    broken.write_text("[model\n", encoding="utf-8")
    for path in (latin, broken, tmp_path / "absent.toml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read: ") as caught:
            read_recipe(path, SftConfig)
        assert str(path) in caught.value.message


# --- a rule for the answers of a file


@pytest.mark.parametrize(
    ("rule", "strategy"), [("apar", "apar"), ("apar_published", "apar"), ("sot", "sot")]
)
def test_a_rule_trains_the_strategy_that_it_is_of(tmp_path: Path, rule: str, strategy: str) -> None:
    ruled = recipe({"data": {**FILE, "rule": rule}, "train.positions": "continue"})
    assert read(tmp_path, ruled).data.trained_strategy == strategy
    assert read(tmp_path, recipe({"data": FILE})).data.trained_strategy == "pasta"


def test_a_join_needs_positions_that_leave_no_gaps(tmp_path: Path) -> None:
    changes = {"train.positions": "continue", "train.join": "recompute"}
    assert read(tmp_path, recipe(changes)).train.join == "recompute"
    with pytest.raises(UsageError, match="'predict' does"):
        read(tmp_path, recipe({**changes, "train.positions": "predict"}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": {**FILE, "rule": "points"}}, "data.rule is 'points'"),
        ({"data": {**FILE, "rule": "apar", "plain": True}}, "data.rule would be ignored"),
        (
            {"data": {**FILE, "rule": "apar"}, "train.positions": "predict"},
            "apar makes no promises",
        ),
    ],
)
def test_an_unusable_rule_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read(tmp_path, recipe({"train.positions": "continue", **changes}))


# --- several files


def test_a_file_may_be_a_list_of_files(tmp_path: Path) -> None:
    found = read(tmp_path, recipe({"data": {"file": ["a.jsonl", "b.jsonl"], "exclude": "ids.txt"}}))
    assert found.data.paths == [Path("a.jsonl"), Path("b.jsonl")]
    assert found.data.exclude_paths == [Path("ids.txt")]
    assert read(tmp_path, recipe({"data": FILE})).data.paths == [Path(str(FILE["file"]))]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": {"file": []}}, "data.file names no file"),
        ({"data": {"file": ["a.jsonl", 3]}}, "data.file must be str or a list"),
    ],
)
def test_unusable_lists_of_files_are_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        read(tmp_path, recipe(changes))


# --- changes


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ("train.steps=20", "train.steps", 20),
        ("train.out = build/a b", "train.out", "build/a b"),
        ('train.out="build/c"', "train.out", "build/c"),
        ("train.out=a=b", "train.out", "a=b"),
        ("train.learning_rate=1", "train.learning_rate", 1.0),
        ("data.max_tokens=7", "data.max_tokens", 7),
        ("data.plain=true", "data.plain", True),
    ],
)
def test_a_key_can_be_changed_by_an_override(
    tmp_path: Path, change: str, key: str, value: object
) -> None:
    found: Any = read(tmp_path, recipe({}), ["train.steps=5", change])
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value


def test_an_override_without_a_value_removes_the_key(tmp_path: Path) -> None:
    random = ["model.random.architecture=a.json", "model.random.tokenizer=t"]
    found = read(tmp_path, recipe({}), ["model.base=", *random])
    assert found.model == ModelConfig(random=RandomConfig(architecture="a.json", tokenizer="t"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.steps", "a change is table.key=value, not 'train.steps'"),
        ("=3", "a change is table.key=value, not '=3'"),
        ("train..steps=3", "a change is table.key=value, not 'train..steps=3'"),
        ("train.stepz=3", "unknown key train.stepz"),
        ("train.steps=many", "train.steps must be int, not 'many'"),
        ("train.steps=3\ntrain.out=x", "train.steps must be int, not '3\\ntrain.out=x'"),
        ("train.out.x=3", "train.out must be a table"),
        ("train.out=", "train.out is missing"),
    ],
)
def test_a_wrong_override_is_reported_like_a_wrong_key(
    tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, recipe({}), [change])
    assert caught.value.message == message
