"""``pasta evaluate alpaca`` from answers to report, with a random model and the scripted server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Pasta
from tests.fakes.scripted_judge import prefer_more_words
from tests.fakes.scripted_server import Faults, ScriptedServer

NUM = 40


@pytest.fixture
def instructions(tmp_path: Path) -> Path:
    file = tmp_path / "instructions.jsonl"
    rows = [{"instruction": f"Name {n} rivers.", "dataset": "ab"[n % 2]} for n in range(2 * NUM)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_run_with_a_scripted_judge_ends_in_a_report_without_win_rates(
    pasta: Pasta, taught_folder: Path, untaught_folder: Path, instructions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    models = ("--model", taught_folder, "--set", f"baseline={untaught_folder}")
    models += ("--set", "max_tokens=12")
    with ScriptedServer(prefer_more_words, Faults(server_error=0.05), model="judge-1") as server:
        judge = ("--set", "judge.model=judge-1", "--set", f"judge.base_url={server.base_url}")
        flags = ("--out", out, "--set", f"instructions={instructions}", "--limit", NUM)
        flags += ("--set", "num_timed=4")
        result = pasta("evaluate", "alpaca", *flags, *models, *judge)
        assert result.code == 0
        assert "the judge is to be asked: " in result.err
        num_paid = sum(server.paid.values())
        again = pasta("evaluate", "alpaca", *flags, *models, *judge, "--json")
        assert sum(server.paid.values()) == num_paid
    assert f"pipeline check, n = {NUM}" in result.out
    report = again.json
    assert report["judge"]["is_scripted"]
    assert "win_rate" not in again.out
    pasta_figures = report["systems"]["pasta"]
    assert (pasta_figures["num_prompts"], pasta_figures["num_timed"]) == (NUM, 4)
    assert pasta_figures["realised_speedup"]["mean"] > 0
    assert pasta_figures["provenance"]["model"] == str(taught_folder)
    page = (out / "report.md").read_text()
    assert f"pipeline check, n = {NUM}" in page
    instructions.unlink()
    offline = pasta("evaluate", "alpaca", "--out", out, "--offline", "--json")
    assert (offline.code, offline.json) == (0, report)
    assert (out / "report.md").read_text() == page


def test_without_a_judge_only_speed_is_reported(
    pasta: Pasta, taught_folder: Path, instructions: Path, tmp_path: Path
) -> None:
    named = f"other=pasta:{taught_folder}"
    flags = ("--model", taught_folder, "--set", f"instructions={instructions}", "--limit", 2)
    flags += ("--out", tmp_path / "run", "--set", "max_tokens=8", "--system", named)
    result = pasta("evaluate", "alpaca", *flags)
    assert (result.code, result.err) == (0, "")
    assert "nobody judged: no win rates" in result.out
    assert {"sequential", "pasta", "other"} < {*result.out.splitlines()}
