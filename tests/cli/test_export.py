"""``pasta export``: what it writes, what it says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Pasta


@pytest.mark.parametrize(("form", "name"), [("--merged", "out"), ("--gguf", "out.gguf")])
def test_a_model_is_exported(
    pasta: Pasta, tmp_path: Path, taught_folder: Path, form: str, name: str
) -> None:
    result = pasta("export", taught_folder, tmp_path / name, form)
    assert result.code == 0
    assert "bfloat16" in result.out
    assert "68 tag pieces" in result.out
    assert "trained with positions predict; a stock server is exact only for" in result.err
    assert [one.name for one in tmp_path.iterdir()] == [name]
    again = pasta("export", taught_folder, tmp_path / name, form)
    assert (again.code, again.out) == (2, "")
    assert "exists already" in again.err


def test_the_merged_folder_runs(pasta: Pasta, tmp_path: Path, taught_folder: Path) -> None:
    assert pasta("export", taught_folder, tmp_path / "out", "--merged", "--dtype=float32").code == 0
    prompt = "--max-tokens=20", "--seed=1", "a prompt"
    expected = pasta("run", "--model", taught_folder, *prompt)
    assert pasta("run", "--model", tmp_path / "out", *prompt).out == expected.out


def test_a_model_without_tags_is_exported_with_a_notice(
    pasta: Pasta, tmp_path: Path, untaught_folder: Path
) -> None:
    result = pasta("export", untaught_folder, tmp_path / "out", "--merged")
    assert result.code == 0
    assert "has no tag pieces" in result.err
    assert not (tmp_path / "out" / "pasta_config.json").exists()


@pytest.mark.parametrize("forms", [(), ("--merged", "--gguf")])
def test_exactly_one_form_is_named(pasta: Pasta, tmp_path: Path, forms: tuple[str, ...]) -> None:
    result = pasta("export", "nowhere", tmp_path / "out", *forms)
    assert (result.code, result.out) == (2, "")
    assert "give either --merged or --gguf" in result.err
