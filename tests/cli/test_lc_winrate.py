"""``pasta evaluate lc-winrate`` with tables made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Pasta

DOCUMENTED = {
    "win_rate",
    "standard_error",
    "n_total",
    "avg_length",
    "length_controlled_winrate",
    "lc_standard_error",
}
PREFERENCES = (2, 1, 1.5, 1.75, 0, 2, 1.25, 2)


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    files = {name: tmp_path / name for name in ("annotations", "difficulty", "gamed")}
    rows = [
        {"model": name, "row": row, "preference": one, "len_1": 100 + row, "len_2": 90 + 3 * row}
        for name, turned in (("good", PREFERENCES), ("worse", [1] * 8))
        for row, one in enumerate(turned)
    ]
    files["annotations"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    difficulty = "".join(f"{row},{row / 4 - 1}\n" for row in range(8))
    files["difficulty"].write_text("index,instruction_difficulty\n" + difficulty)
    gamed = "".join(f"0.{row},{row - 4},{row / 4 - 1}\n" for row in range(8))
    files["gamed"].write_text("preference,std_delta_len,instruction_difficulty\n" + gamed)
    return files


def flags(tables: dict[str, Path]) -> list[object]:
    return [part for name, file in tables.items() for part in (f"--{name}", file)]


def test_json_has_the_documented_figures_of_each_model(
    pasta: Pasta, tables: dict[str, Path]
) -> None:
    result = pasta("evaluate", "lc-winrate", *flags(tables), "--json")
    assert (result.code, result.err) == (0, "")
    assert [*result.json] == ["good", "worse"]
    assert all(figures.keys() >= DOCUMENTED for figures in result.json.values())
    good = result.json["good"]
    assert (good["win_rate"], good["n_total"], good["avg_length"]) == (62.5, 8, 100)
    assert result.json["worse"]["win_rate"] == 0


def test_a_missing_verdict_refuses_the_win_rate_unless_allowed(
    pasta: Pasta, tables: dict[str, Path]
) -> None:
    file = tables["annotations"]
    file.write_text(file.read_text().replace('"preference": 0,', '"preference": null,'))
    refused = pasta("evaluate", "lc-winrate", *flags(tables), "--json")
    assert refused.code == 1
    assert (refused.json["good"]["win_rate"], refused.json["worse"]["win_rate"]) == (None, 0)
    assert "good: no win rate: 1 of 8 rows have no verdict (4)" in refused.err
    allowed = pasta("evaluate", "lc-winrate", *flags(tables), "--allow-missing", "--json")
    assert (allowed.code, allowed.err) == (0, "")
    good = allowed.json["good"]
    assert good["win_rate_missing_lost"] < good["win_rate"]
