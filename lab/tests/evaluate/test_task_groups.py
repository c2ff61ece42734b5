"""Record files of the tasks, compared by dependence and with perfect forks."""

from __future__ import annotations

import gzip
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from pasta_lab.evaluate.records import GradedAnswer
from pasta_lab.evaluate.structure import Structure, true_structure
from pasta_lab.tasks import make
from pasta_lab.tasks.annotators import gold
from pasta_lm.errors import InputError
from pasta_lm.interpreter.speed import document_critical_path

SCRIPT = Path(__file__).parents[3] / "scripts" / "task_groups.py"
FAMILIES = ("takings", "running_takings", "profiles")


def count(text: str) -> int:
    return len(text.split())


@pytest.fixture(scope="module")
def groups() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def records(path: Path, *, grade: float = 1.0, seeds: int = 2, is_parallel: bool = True) -> Path:
    """Write reference answers, parallel as their dependencies allow, beside sequential ones."""
    rows = []
    for task in (make(family, "dev", seed) for family in FAMILIES for seed in range(seeds)):
        length = count(task.text)
        forked = document_critical_path(gold(task).with_spaces_after_tags(), count)
        for strategy in ("pasta", "sequential"):
            parallel = is_parallel and strategy == "pasta"
            one = GradedAnswer(
                text=task.text,
                program=task.text,
                finish_reason="stop",
                num_illegal=0,
                num_content_tokens=length,
                critical_path=forked if parallel else length,
                kind="generated",
                task_id=task.id,
                family=task.family,
                strategy=strategy,
                grade=grade if strategy == "pasta" else 1.0,
                structure=true_structure(task) if parallel else Structure(),
            )
            rows.append(json.dumps(one.to_row()))
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    return path


def test_answers_with_the_true_structure_have_the_speed_of_perfect_forks(
    groups: dict[str, Any], tmp_path: Path
) -> None:
    found = groups["figures"](records(tmp_path / "a.jsonl.gz"), "pasta", count)
    assert found["all"]["of_perfect_forks"]["mean"] == pytest.approx(1, abs=1e-4)
    assert found["all"]["theoretical_speedup"] == found["all"]["perfect_forks"]
    assert found["all"]["difference"]["mean"] == 0
    assert found["all"]["pair_accuracy"]["mean"] == 1
    assert found["all"]["preface_right"]["mean"] == 1


def test_chains_are_a_group_of_their_own(groups: dict[str, Any], tmp_path: Path) -> None:
    found = groups["figures"](records(tmp_path / "a.jsonl.gz"), "pasta", count)
    assert {name: one["num_prompts"] for name, one in found.items()} == {
        "all": 6,
        "chains": 2,
        "others": 4,
    }
    assert found["chains"]["perfect_forks"]["mean"] == 1
    assert found["others"]["perfect_forks"]["mean"] > 1


def test_sequential_answers_miss_the_speed_of_perfect_forks(
    groups: dict[str, Any], tmp_path: Path
) -> None:
    path = records(tmp_path / "a.jsonl.gz", is_parallel=False)
    found = groups["figures"](path, "pasta", count)
    assert found["others"]["of_perfect_forks"]["mean"] < 1
    assert found["others"]["fork_recall"]["mean"] == 0


def test_a_second_file_is_compared_prompt_by_prompt(groups: dict[str, Any], tmp_path: Path) -> None:
    first = records(tmp_path / "a.jsonl.gz")
    other = records(tmp_path / "b.jsonl.gz", grade=0.5, is_parallel=False)
    read = groups["answers_of"]
    found = groups["compared"](read(first, "pasta"), read(other, "pasta"))
    assert found["grade"]["mean"] == -0.5
    assert found["parallelism_ratio"]["mean"] < 1


def test_the_mean_of_several_files_is_taken_prompt_by_prompt(
    groups: dict[str, Any], tmp_path: Path
) -> None:
    files = [records(tmp_path / "a.jsonl.gz"), records(tmp_path / "b.jsonl.gz", grade=0.5)]
    found = groups["together"](files, "pasta")
    assert (found["grade"]["mean"], found["difference"]["mean"]) == (0.75, -0.25)


def test_files_with_other_prompts_are_not_compared(groups: dict[str, Any], tmp_path: Path) -> None:
    read = groups["answers_of"]
    first = read(records(tmp_path / "a.jsonl.gz"), "pasta")
    other = read(records(tmp_path / "b.jsonl.gz", seeds=1), "pasta")
    with pytest.raises(InputError, match="different prompts"):
        groups["compared"](first, other)


def test_a_strategy_without_an_answer_is_refused(groups: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no answer of the strategy 'apar'"):
        groups["answers_of"](records(tmp_path / "a.jsonl.gz"), "apar")
