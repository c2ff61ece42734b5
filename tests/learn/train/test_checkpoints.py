"""Which checkpoint a run resumes from: ``test_sft`` holds that it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pasta_lm.learn.train.trainer import STATE, newest_checkpoint

WHOLE = '{"global_step": 1}'


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
