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
from tests.learn.judge.scripted_judges import RuleJudge, longer, perfect

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
    settings = {"kind": "llm", "model": "judge-1", "base_url": server.base_url}
    return tuple(part for key, one in settings.items() for part in ("--set", f"judge.{key}={one}"))


def of_this_process(monkeypatch: pytest.MonkeyPatch, judge: RuleJudge) -> tuple[str, ...]:
    monkeypatch.setattr("pasta_lab.cli.judge_recipe.judge_of", lambda *_: judge)
    return ("--set", "judge.kind=likelihood", "--set", "judge.model=m")


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


def test_a_perfect_judge_may_be_used(
    pasta: Pasta, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = of_this_process(monkeypatch, perfect({text(n) for n in range(NUM)}))
    command = (*CHECK, "--out", tmp_path / "run", "--answers", answers, *settings, "--require")
    result = pasta(*command)
    assert (result.code, result.err) == (0, "")
    assert "may be used for headlines" in result.out


def test_an_interrupted_check_goes_on_where_it_stopped(
    pasta: Pasta, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, whole = longer(), longer()
    rule = judge.rule

    def stops(one: object) -> object:
        if len(judge.asked) == 20:
            raise KeyboardInterrupt
        return rule(one)  # type: ignore[arg-type]

    judge.rule = stops  # type: ignore[assignment]
    command = (*CHECK, "--out", tmp_path / "run", "--answers", answers, "--json")
    result = pasta(*command, *of_this_process(monkeypatch, judge))
    assert (result.code, result.out) == (130, "")
    assert "the same command continues the run" in result.err
    judge.rule = rule
    resumed = pasta(*command, *of_this_process(monkeypatch, judge))
    settings = of_this_process(monkeypatch, whole)
    other = pasta(*CHECK, "--out", tmp_path / "other", "--answers", answers, "--json", *settings)
    assert resumed.json == other.json
    assert len(judge.asked) == len(whole.asked) + 1  # the interrupted one is asked again


def test_agreement_with_stored_judgements_is_printed(
    pasta: Pasta, answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, judgements = tmp_path / "reference.jsonl", tmp_path / "judgements.jsonl"
    short = [{"instruction": f"Write {n}.", "output": "No."} for n in range(NUM)]
    reference.write_text("".join(json.dumps(row) + "\n" for row in short))
    rows = [
        {"model": "m", "row": n, "preference": 1.9, "len_1": 3, "len_2": len(text(n))}
        for n in range(NUM)
    ]
    judgements.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = tmp_path / "check.toml"
    recipe.write_text(
        '[judge]\nkind = "likelihood"\nmodel = "m"\n[preferences]\n'
        f'judgements = "{judgements}"\nreference = "{reference}"\noutputs = ["{answers}"]\n'
    )
    of_this_process(monkeypatch, longer())
    command = (*CHECK, recipe, "--out", tmp_path / "run")
    shown = pasta(*command)
    assert "agreement                        1.000 [1.000, 1.000]" in shown.out
    assert "not shown to be above that of the longer answer" in shown.out
    assert "refused for headlines: no damage was planted" in shown.err
    found = pasta(*command, "--json").json
    assert found["damage"] is None
    assert found["preferences"]["num_pairs"] == NUM
    assert pasta(*command, "--require").code == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((), "judge is missing"),
        (("--set", "judge.kind=grader", "--answers", "a"), "answers to tasks alone"),
        (("--set", "judge.kind=local", "--set", "judge.model=m"), "nothing to check the judge"),
        (("--set", "judge.kind=local", "--answers", "a"), "judge.model is missing"),
    ],
)
def test_a_check_without_a_judge_or_without_answers_is_a_usage_error(
    pasta: Pasta, tmp_path: Path, settings: tuple[str, ...], said: str
) -> None:
    result = pasta(*CHECK, "--out", tmp_path / "run", *settings)
    assert result.code == 2
    assert said in result.err
    assert not (tmp_path / "run").exists()


def test_a_missing_file_of_answers_is_an_input_error(pasta: Pasta, tmp_path: Path) -> None:
    settings = ("--set", "judge.kind=local", "--set", "judge.model=m", "--answers", "none.jsonl")
    result = pasta(*CHECK, "--out", tmp_path / "run", *settings)
    assert (result.code, result.out) == (3, "")
    assert "no such file" in result.err


def test_a_judge_behind_an_endpoint_is_checked_without_torch() -> None:
    code = "import sys, pasta_lab.cli.judge_recipe; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
