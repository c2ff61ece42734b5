"""``pasta evaluate speed`` on records made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Pasta


@pytest.fixture
def records(tmp_path: Path) -> Path:
    file = tmp_path / "records.jsonl"
    rows = [
        {
            "task_id": str(n),
            "strategy": name,
            "text": "x" * 9,
            "num_content_tokens": 8,
            "critical_path": path,
            "wall_s": path / 10,
        }
        for n in range(3)
        for name, path in (("sequential", 8), ("pasta", 4))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_table_and_json_have_the_same_figures(pasta: Pasta, records: Path) -> None:
    table = pasta("evaluate", "speed", records)
    assert (table.code, table.err) == (0, "")
    assert "2.00 [2.00, 2.00]" in table.out.splitlines()[2]
    found = pasta("evaluate", "speed", records, "--json").json
    assert found["systems"]["pasta"]["realised_speedup"]["mean"] == 2.0
    assert [*found["systems"]] == ["sequential", "pasta"]
    assert len(found["published"]["points"]) == 9
    assert "published, Gemma 7B, AlpacaEval, not comparable with ours" in table.out


def test_figures_are_written_and_a_missing_figure_4_is_explained(
    pasta: Pasta, records: Path, tmp_path: Path
) -> None:
    rates = tmp_path / "rates.json"
    rates.write_text(json.dumps({"pasta": {"win_rate": 45.0, "standard_error": 2.0}}))
    out = tmp_path / "figures"
    without = pasta("evaluate", "speed", records, "--out", out)
    assert "no Figure 4" in without.err
    assert not (out / "figure-4.svg").exists()
    result = pasta("evaluate", "speed", records, "--out", out, "--win-rates", rates)
    assert (result.code, result.err) == (0, "")
    drawn = (out / "figure-4.svg").read_text()
    assert "(2.00, 45.0)" in drawn
    assert "not comparable with ours" in drawn
    flags = ("--out", out, "--win-rates", rates, "--no-published")
    assert "not comparable" not in pasta("evaluate", "speed", records, *flags).out
    assert "not comparable" not in (out / "figure-4.svg").read_text()


def test_unusable_inputs_are_refused(pasta: Pasta, records: Path, tmp_path: Path) -> None:
    for flags, code, says in (
        ((tmp_path / "absent.jsonl",), 3, "no such file"),
        ((records, "--baseline", "sot"), 2, "no answers of the baseline 'sot'"),
        ((records, "--win-rates", records), 3, "is not JSON"),
        ((), 2, "SOURCE"),
    ):
        result = pasta("evaluate", "speed", *flags)
        assert (result.code, result.out) == (code, "")
        assert says in result.err
