"""``pasta train router``: a router beside a model, and the strategy that asks it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Pasta


def test_it_is_learned_written_and_asked(pasta: Pasta, taught_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(taught_folder, folder)
    run = ("run", "hello", "--model", folder, "--strategy", "sot-router", "--max-tokens", 9)
    refused = pasta(*run)
    assert refused.code == 2
    assert "needs a router" in refused.err
    learned = pasta("train", "router", folder, "--num-tasks", 90)
    assert learned.code == 0
    assert learned.out.startswith(f"{folder / 'router.json'}: agrees with the true structure on ")
    answer = pasta(*run, "--json").json
    assert answer["strategy"] == "sot-router"


@pytest.mark.parametrize(
    ("flags", "code", "shown"),
    [
        (("./nowhere",), 2, "no config.json"),
        (("./nowhere", "--annotator", "gold"), 2, "one of sot, sot_gold, sot_noisy"),
        (("./nowhere", "--num-tasks", "0"), 2, "--num-tasks"),
    ],
)
def test_a_wrong_setting_is_refused(
    pasta: Pasta, flags: tuple[str, ...], code: int, shown: str
) -> None:
    result = pasta("train", "router", *flags)
    assert (result.code, result.out) == (code, "")
    assert shown in result.err


def test_prompts_of_one_kind_teach_nothing_and_write_nothing(
    pasta: Pasta, taught_folder: Path
) -> None:
    flags = ("--annotator", "sot_noisy", "--num-tasks", 1)
    result = pasta("train", "router", taught_folder, *flags)
    assert result.code == 3
    assert "learns nothing" in result.err
    assert not (taught_folder / "router.json").exists()
