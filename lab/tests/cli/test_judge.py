"""``pasta judge check`` with the scripted server: figures, refusals, stored verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pasta_lm.journal import read_rows
from tests.cli.conftest import Pasta
from tests.fakes.scripted_judge import mute_at_times, prefer_more_words
from tests.fakes.scripted_server import ScriptedServer

NUM = 12
CHECK = ("judge", "check")


def text(number: int) -> str:
    lengths = (5, 7, 9, 12)
    return "\n\n".join(f"Part {n} of {number}:" + " word" * num for n, num in enumerate(lengths))


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    file = tmp_path / "outputs_m.jsonl"
    rows = [{"instruction": f"Write {n}.", "output": text(n)} for n in range(NUM)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def remote(server: ScriptedServer) -> tuple[str, ...]:
    settings = {"model": "judge-1", "base_url": server.base_url}
    return tuple(part for key, one in settings.items() for part in ("--set", f"judge.{key}={one}"))


def test_a_judge_of_length_is_refused_and_a_second_run_asks_nothing(
    pasta: Pasta, answers: Path, tmp_path: Path
) -> None:
    with ScriptedServer(prefer_more_words, model="judge-1") as server:
        command = (*CHECK, "--out", tmp_path / "run", "--answers", answers, *remote(server))
        first = pasta(*command)
        assert "the judge is to be asked: " in first.err
        num_paid = sum(server.paid.values())
        again = pasta(*command, "--require", "--json")
        assert sum(server.paid.values()) == num_paid
    assert (first.code, again.code) == (0, 1)
    kinds = again.json["damage"]["kinds"]
    assert [kinds[kind]["accuracy"]["mean"] for kind in ("dropped", "doubled", "cut")] == [1, 0, 1]
    assert kinds["cut"]["num_pairs"] == NUM
    assert again.json["is_scripted"]
    assert "pasta: refused for headlines: its replies follow a script" in again.err
    assert "of planted damage, below 0.9" in again.err
    assert "doubled" in first.out
    assert json.loads((tmp_path / "run" / "report.json").read_text()) == again.json
    assert len(read_rows(tmp_path / "run" / "pairs.jsonl")) == 4 * NUM


def test_a_judge_that_is_often_mute_is_refused(pasta: Pasta, answers: Path, tmp_path: Path) -> None:
    with ScriptedServer(mute_at_times(prefer_more_words, 0.5), model="judge-1") as server:
        command = (*CHECK, "--out", tmp_path / "run", "--answers", answers, *remote(server))
        result = pasta(*command, "--json")
    damage = result.json["damage"]
    assert damage["num_missing"] + damage["overall"]["num_pairs"] == 4 * NUM
    assert "damaged pairs have no verdict" in result.err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((), "judge is missing"),
        (("--set", "judge.model=m", "--set", "judge.base_url=http://x/v1"), "damage is missing"),
        (("--set", "judge.base_url=http://x/v1", "--answers", "a"), "judge.model is missing"),
    ],
)
def test_a_check_without_a_judge_or_without_answers_is_a_usage_error(
    pasta: Pasta, tmp_path: Path, settings: tuple[str, ...], said: str
) -> None:
    result = pasta(*CHECK, "--out", tmp_path / "run", *settings)
    assert (result.code, (tmp_path / "run").exists()) == (2, False)
    assert said in result.err


def test_a_missing_file_of_answers_is_an_input_error(pasta: Pasta, tmp_path: Path) -> None:
    settings = ("--set", "judge.model=m", "--set", "judge.base_url=http://x/v1")
    result = pasta(*CHECK, "--out", tmp_path / "run", *settings, "--answers", "none.jsonl")
    assert (result.code, result.out) == (3, "")
    assert "no such file" in result.err


def test_a_judge_is_checked_without_torch() -> None:
    code = "import sys, pasta_lab.judge.check; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
