"""``pasta export``: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import json
import shutil
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
    assert "trained with positions predict, join shared: a stock server is not" in result.err
    assert [one.name for one in tmp_path.iterdir()] == [name]
    again = pasta("export", taught_folder, tmp_path / name, form)
    assert (again.code, again.out) == (2, "")
    assert "exists already" in again.err


@pytest.mark.parametrize(
    ("changes", "notice"),
    [
        ({"join": "recompute"}, "positions continue, join recompute: a stock server is exact\n"),
        ({"join": "shared"}, "join shared: a stock server is exact up to an answer's first sync"),
        ({"positions": "oracle"}, "not exact, and pasta run --engine needs --allow-inexact"),
        (None, "it is not known with which positions this model was trained"),
    ],
)
def test_a_notice_says_whether_a_stock_server_is_exact(
    pasta: Pasta, tmp_path: Path, taught_folder: Path, changes: dict[str, str] | None, notice: str
) -> None:
    source = tmp_path / "mine"
    shutil.copytree(taught_folder, source)
    file = source / "pasta_config.json"
    about = json.loads(file.read_text()) | {"positions": "continue"}
    file.unlink() if changes is None else file.write_text(json.dumps(about | changes))
    result = pasta("export", source, tmp_path / "out", "--merged")
    assert notice in result.err


def test_a_model_without_tags_is_exported_with_a_notice(
    pasta: Pasta, tmp_path: Path, untaught_folder: Path
) -> None:
    result = pasta("export", untaught_folder, tmp_path / "out", "--merged")
    assert result.code == 0
    assert "has no tag pieces" in result.err
    assert not (tmp_path / "out" / "pasta_config.json").exists()
