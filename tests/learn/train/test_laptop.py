from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab.tests.evaluate.records import write_records
from pasta_lab.evaluate.records import read_answers, write_answers
from pasta_lab.tasks import Dependence
from pasta_lab.tasks.registry import FAMILIES
from pasta_lm.strategies.model import Pasta

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "runs"))
from laptop_tables import print_exact, print_free, verdict  # noqa: E402

sys.path.remove(str(ROOT / "runs"))
VARIANTS = ("random", "baseline", "pasta-gold", "pasta-noisy")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("laptop")
    environment = os.environ | {"OUT": str(out), "PASTA": f"{sys.executable} -m pasta_lm"}
    command = [str(ROOT / "runs" / "laptop.sh"), "--tiny"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def losses(log: Path) -> list[float]:
    rows = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_the_whole_path_on_a_toy_ends_with_a_falling_loss(made: Path, name: str) -> None:
    found = losses(made / name / "log.jsonl")
    assert found[-1] < found[0]


@pytest.mark.slow
def test_the_whole_path_on_a_toy_ends_with_models_that_load_and_figures(made: Path) -> None:
    model = Pasta.from_pretrained(made / "pasta-gold" / "model")
    assert model.has_tag_pieces
    for name in ("pasta-gold-test", "pasta-gold-hard", "pasta-noisy-test"):
        report = json.loads((made / "results" / f"{name}.json").read_text(encoding="utf-8"))
        assert report["strategies"]["pasta"]["quality"] is not None


@pytest.mark.slow
def test_finished_steps_are_not_repeated(made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*.safetensors")}
    environment = os.environ | {"OUT": str(made), "PASTA": "false"}
    command = [str(ROOT / "runs" / "laptop.sh"), "--tiny"]
    subprocess.run(command, env=environment, capture_output=True, check=True, cwd=ROOT)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*.safetensors")} == before


@pytest.mark.slow
def test_measurements_are_printed_as_tables(made: Path) -> None:
    command = [sys.executable, str(ROOT / "runs" / "laptop_tables.py"), str(made / "results")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    report = json.loads((made / "results" / "pasta-gold-test.json").read_text(encoding="utf-8"))
    quality = report["strategies"]["pasta"]["quality"]
    grade = next(row for row in rows if row[0] == "| grade")
    assert grade[2] == f"{quality['mean']:.3f} ({quality['low']:.3f} to {quality['high']:.3f})"
    assert {row[0].split("`")[1] for row in rows if row[0].startswith("| `")} == {*FAMILIES}


@pytest.mark.parametrize(
    ("dependence", "always", "never", "expected"),
    [
        (Dependence.FREE, -0.01, None, "yes"),
        (Dependence.FREE, -0.03, None, "no"),
        (Dependence.CHAIN, -0.25, 0.0, "yes"),
        (Dependence.CHAIN, -0.10, -0.5, "no"),
        (Dependence.SYNC, 0.0, -0.25, "yes"),
        (Dependence.SYNC, -0.5, -0.10, "no"),
        (Dependence.SYNC, -0.5, None, "-"),
        (Dependence.SHORT, -0.5, -0.5, "-"),
    ],
)
def test_a_family_has_earned_its_name_where_breaking_it_costs_what_it_should(
    dependence: Dependence, always: float | None, never: float | None, expected: str
) -> None:
    costs = [None if cost is None else {"mean": cost} for cost in (always, never)]
    assert verdict(dependence, *costs) == expected


def test_what_forking_costs_is_told_for_answers_that_kept_to_what_was_taught_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, "always_fork")
    rows = read_answers(path)
    place = next(
        i for i, row in enumerate(rows) if row.strategy == "pasta" and row.family == "takings"
    )
    left_out = replace(rows[place].structure, forked=rows[place].structure.forked - {0})
    rows[place] = replace(rows[place], grade=0.4, structure=left_out)
    write_answers(path, rows)
    print_free(path)
    whole, taught = capsys.readouterr().out.splitlines()
    assert "free families together, 6 prompts: -0.100 (" in whole  # the chain is none of them
    assert "as taught, 5 of them: 0.000 (0.000 to 0.000)" in taught


def test_grades_are_told_by_whether_the_structure_is_the_true_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, "always_fork")  # right for six prompts, wrong for the three chains
    rows = [
        replace(row, grade=0.25)
        if row.strategy == "pasta" and row.family == "running_takings"
        else row
        for row in read_answers(path)
    ]
    write_answers(path, rows)
    print_exact(path)
    assert capsys.readouterr().out.splitlines() == [
        "Structure exact, 6 prompts: PASTA and sequential 1.000, 1.000.",
        "Structure not exact, 3 prompts: PASTA and sequential 0.250, 1.000.",
        "Grade of 1, all prompts: PASTA and sequential 0.667, 1.000.",
        "",
    ]
