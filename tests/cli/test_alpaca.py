"""``pasta evaluate alpaca`` from answers to report, with a random model and the scripted server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.remote.scripted_server import Faults, ScriptedReply, ScriptedServer
from tests.cli.conftest import Pasta
from tests.data.judging import answers_of

NUM = 40


def longer_wins(asked: Mapping[str, Any]) -> ScriptedReply:
    first, second = answers_of(asked["messages"][-1]["content"])
    winner = "A" if len(first) > len(second) else "B"
    return ScriptedReply(f"It says more.\n\nVerdict: {winner}, confidence: 70")


@pytest.fixture
def instructions(tmp_path: Path) -> Path:
    file = tmp_path / "instructions.jsonl"
    rows = [{"instruction": f"Name {n} rivers.", "dataset": "made"} for n in range(2 * NUM)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_it_ends_in_a_report_and_a_scripted_judge_in_no_win_rate(
    pasta: Pasta, taught_folder: Path, untaught_folder: Path, instructions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    models = ("--model", taught_folder, "--baseline", untaught_folder, "--max-tokens", 12)
    with ScriptedServer(longer_wins, Faults(server_error=0.05), model="judge-1") as server:
        judge = ("--judge-model", "judge-1", "--judge-url", server.base_url)
        flags = ("--out", out, "--instructions", instructions, "--limit", NUM, "--num-timed", 4)
        result = pasta("evaluate", "alpaca", *flags, *models, *judge)
        assert (result.code, result.err) == (0, "")
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
    assert len(json.loads((out / "alpaca_eval" / "pasta.json").read_text())) == NUM
    page = (out / "report.html").read_text()
    instructions.unlink()
    offline = pasta("evaluate", "alpaca", "--out", out, "--offline", "--json")
    assert (offline.code, offline.json) == (0, report)
    assert (out / "report.html").read_text() == page


def test_without_a_judge_speed_alone_is_reported(
    pasta: Pasta, taught_folder: Path, instructions: Path, tmp_path: Path
) -> None:
    named = f"twin=pasta:{taught_folder}"
    flags = ("--model", taught_folder, "--instructions", instructions, "--limit", 2)
    result = pasta(
        "evaluate",
        "alpaca",
        "--out",
        tmp_path / "run",
        *flags,
        "--max-tokens",
        8,
        "--system",
        named,
    )
    assert (result.code, result.err) == (0, "")
    assert "nobody judged: no win rates" in result.out
    assert [line.split()[0] for line in result.out.splitlines()[1:4]] == [
        "sequential",
        "pasta",
        "twin",
    ]


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--system", "x"), 2, "is not of the form NAME=STRATEGY:MODEL"),
        (("--strategies", "guess"), 2, "cannot be 'guess'"),
        (("--judge-model", "x"), 2, "--judge-model and --judge-url go together"),
        (("--template", "absent", "--instructions", "-"), 3, "no such file"),
        (("--offline",), 3, "is not the folder of an alpaca run"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_decoded(
    pasta: Pasta, tmp_path: Path, flags: tuple[str, ...], code: int, says: str
) -> None:
    result = pasta("evaluate", "alpaca", "--out", tmp_path / "run", "--model", "./no", *flags)
    assert (result.code, result.out) == (code, "")
    assert says in result.err
