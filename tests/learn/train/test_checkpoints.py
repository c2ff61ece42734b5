"""A run that is killed at any point resumes from its newest complete checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.testing import assert_close

from pasta_lm.learn.train.config import ModelConfig, SftConfig
from pasta_lm.learn.train.sft import train_sft
from pasta_lm.learn.train.trainer import STATE, newest_checkpoint
from tests.learn.train.recipes import begin, losses, sft, weights

ROOT = Path(__file__).parents[3]
WHOLE = '{"global_step": 1}'
STEPS, SAVE_STEPS = 12, 4

# --- which checkpoint


@pytest.mark.parametrize(
    ("states", "newest", "left_out"),
    [
        ({}, None, []),
        ({"checkpoint-5": WHOLE, "checkpoint-10": WHOLE}, "checkpoint-10", []),
        ({"checkpoint-9": WHOLE, "checkpoint-10": None}, "checkpoint-9", ["checkpoint-10"]),
        ({"checkpoint-9": WHOLE, "checkpoint-10": WHOLE[:9]}, "checkpoint-9", ["checkpoint-10"]),
        ({"checkpoint-9": WHOLE, "checkpoint-10": "null"}, "checkpoint-9", ["checkpoint-10"]),
        (
            {"checkpoint-8": WHOLE, "checkpoint-10": None, "checkpoint-12": "{"},
            "checkpoint-8",
            ["checkpoint-12", "checkpoint-10"],
        ),
        ({"checkpoint-8": WHOLE, "checkpoint-6": None}, "checkpoint-8", []),
        ({"checkpoint-5": None}, None, ["checkpoint-5"]),
        ({"model": WHOLE, "checkpoint-x": WHOLE, "old-checkpoint-7": WHOLE}, None, []),
    ],
)
def test_the_newest_complete_checkpoint_is_used_and_incomplete_ones_are_reported(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    states: dict[str, str | None],
    newest: str | None,
    left_out: list[str],
) -> None:
    for name, state in states.items():
        (tmp_path / name).mkdir()
        if state is not None:
            (tmp_path / name / STATE).write_text(state, encoding="utf-8")
    found = newest_checkpoint(tmp_path)
    assert found == (newest and tmp_path / newest)
    said = [
        f"pasta: {tmp_path / name} was not written to its end: it is left out" for name in left_out
    ]
    said += [] if newest else [f"pasta: no checkpoint in {tmp_path}: starting anew"]
    assert capsys.readouterr().err.splitlines() == said


def test_files_and_missing_folders_are_not_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").touch()
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "absent") is None


# --- going on


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return begin(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def whole(model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> SftConfig:
    config = recipe(model, tmp_path_factory.mktemp("whole"))
    train_sft(config)
    return config


def recipe(model: ModelConfig, out: Path) -> SftConfig:
    return sft(model, out, steps=STEPS, save_steps=SAVE_STEPS, warmup=0.2)


def assert_same_run(parts: SftConfig, whole: SftConfig) -> None:
    last, expected = (
        {step: found[-1] for step, found in losses(config).items()} for config in (parts, whole)
    )
    assert last == pytest.approx(expected, abs=1e-6)
    one, other = (weights(Path(config.train.out) / "model") for config in (parts, whole))
    assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_truncated_newest_checkpoint_falls_back_to_the_previous_one(
    model: ModelConfig, whole: SftConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(model, tmp_path)
    train_sft(config)
    (tmp_path / f"checkpoint-{STEPS}" / STATE).unlink()
    (tmp_path / f"checkpoint-{STEPS}" / "optimizer.pt").write_bytes(b"half")
    train_sft(config, resume=True)
    assert f"checkpoint-{STEPS} was not written to its end" in capsys.readouterr().err
    times = {step: len(found) for step, found in losses(config).items()}
    assert times == {step: 1 + (step > STEPS - SAVE_STEPS) for step in range(1, STEPS + 1)}
    assert_same_run(config, whole)
