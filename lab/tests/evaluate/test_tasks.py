"""Evaluations of tasks: the choice of tasks, the rounds, the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from lab.tests.tasks.reading import task_set
from pasta_lab.evaluate.quality import decisions, quality
from pasta_lab.evaluate.records import PERFECT, UNMASKED, GradedAnswer
from pasta_lab.evaluate.structure import true_structure
from pasta_lab.evaluate.tasks import (
    TaskEvaluation,
    TaskSettings,
    choose_tasks,
    evaluate_tasks,
    report,
)
from pasta_lab.tasks import Task, make, training_families
from pasta_lab.tasks.registry import held_out_families, prompts_hash
from pasta_lm.engines.request import SamplingParams
from pasta_lm.measure.speed import realised, speed
from pasta_lm.measure.table import to_json
from tests.tiny import tiny

TRAINED, HELD_OUT = training_families(), held_out_families()
MAX_TOKENS = 24
DOCUMENTED = {"kind", "num_prompts", "model", "device", "baseline", "strategies"}
OF_STRATEGY = {"quality", "win_rate", "theoretical_speedup", "realised_speedup", "parallelism"}
OF_STRATEGY |= {"well_formed", "families", "num_prompts"}
DECISIONS = {"fork_precision", "fork_recall", "sync_precision", "sync_recall", "structure_exact"}
DECISIONS |= {"pair_accuracy", "pairs_told_apart", "well_formed_unmasked"}

# --- which tasks


def by_family(tasks: Sequence[Task]) -> Counter[str]:
    return Counter(task.family for task in tasks)


def seed_of(task: Task) -> int:
    return int(task.id.rsplit("-", 1)[1])


@pytest.mark.parametrize("num", [1, 4, 20, 21, 22, 30, 41, 42, 100])
def test_the_number_of_prompts_is_exact_and_families_are_uniform(num: int) -> None:
    tasks, _ = choose_tasks(TaskSettings(num_prompts=num, num_timed=0))
    counts = by_family(tasks)
    trained = [counts[family] for family in TRAINED]
    assert sum(trained) == num
    assert max(trained) - min(trained) <= 1
    # Held-out families stand apart: each has as many as the others, and none is counted.
    assert [counts[family] for family in HELD_OUT] == [max(trained)] * len(HELD_OUT)
    assert len({task.id for task in tasks}) == len(tasks)


@given(st.integers(1, 70), st.integers(0, 5))
@hypothesis_settings(max_examples=20)
def test_the_first_prompts_of_every_family_are_timed(num: int, num_timed: int) -> None:
    tasks, count = choose_tasks(TaskSettings(num_prompts=num, num_timed=num_timed))
    timed = tasks[:count]
    for family in (*TRAINED, *HELD_OUT):
        seeds = [seed_of(task) for task in tasks if task.family == family]
        assert seeds == [*range(len(seeds))]
        assert [seed_of(task) for task in timed if task.family == family] == seeds[:num_timed]


def test_prompts_equal_those_of_the_fixed_set() -> None:
    fixed = {task.id: task for task in task_set("test", 3)}
    tasks, _ = choose_tasks(TaskSettings(num_prompts=3 * len(TRAINED)))
    assert {task.id: task for task in tasks} == fixed


def test_split_and_wordings_are_passed_on() -> None:
    settings = TaskSettings(num_prompts=21, split="hard", wordings="train")
    tasks, _ = choose_tasks(settings)
    assert tasks == [make(family, "hard", 0, wordings="train") for family in (*TRAINED, *HELD_OUT)]


# --- a whole run

ALL = TaskSettings(num_prompts=21, num_timed=0, max_tokens=MAX_TOKENS)
TIMED = TaskSettings(num_prompts=4, num_timed=1, max_tokens=MAX_TOKENS)
MODEL, BASELINE = tiny("ours", seed=7), tiny("theirs", seed=1)


def run(settings: TaskSettings) -> tuple[TaskEvaluation, list[tuple[str, int, int]]]:
    told: list[tuple[str, int, int]] = []
    progress = lambda name, done, total: told.append((name, done, total))  # noqa: E731
    return evaluate_tasks(settings, MODEL, BASELINE, progress), told


@pytest.fixture(scope="module")
def answers() -> TaskEvaluation:
    return run(ALL)[0]


@pytest.fixture(scope="module")
def timed_run() -> tuple[TaskEvaluation, list[tuple[str, int, int]]]:
    return run(TIMED)


@pytest.fixture(scope="module")
def timed(timed_run: tuple[TaskEvaluation, list[tuple[str, int, int]]]) -> TaskEvaluation:
    return timed_run[0]


def strategies_of(settings: TaskSettings, answers: TaskEvaluation) -> dict[str, dict[str, Any]]:
    found = report(settings, answers, MODEL, BASELINE)["strategies"]
    assert isinstance(found, dict)
    return found


def same(one: GradedAnswer, other: Any) -> bool:
    return (one.text, one.program) == (other.text, other.document.written())


def test_batching_does_not_change_an_answer(answers: TaskEvaluation) -> None:
    params = SamplingParams(max_tokens=MAX_TOKENS)
    who = [("pasta", MODEL), ("sequential", BASELINE)]
    for name, model in who:
        for place in (0, 7, 24):
            alone = model.generate(answers.tasks[place].prompt, params, strategy=name)
            assert same(answers.scored[name][place], alone)


def test_every_task_has_an_answer_in_order(answers: TaskEvaluation) -> None:
    ids = [task.id for task in answers.tasks]
    for name in ("sequential", "pasta"):
        rows = answers.scored[name]
        assert [row.task_id for row in rows] == ids
        assert {row.strategy for row in rows} == {name}
    found = strategies_of(ALL, answers)
    for figures in found.values():
        assert figures["num_prompts"] == 21
        assert figures["wins"] + figures["ties"] + figures["losses"] == 21
        assert figures["held_out"]["num_prompts"] == 4


def test_the_report_has_the_documented_keys(answers: TaskEvaluation, timed: TaskEvaluation) -> None:
    for settings, given_ones in ((ALL, answers), (TIMED, timed)):
        found = report(settings, given_ones, MODEL, BASELINE)
        assert found.keys() >= DOCUMENTED
        assert (found["kind"], found["device"]) == ("generated", "cpu")
        assert (found["model"], found["baseline"]) == ("ours", "theirs")
        assert found["num_prompts"] == settings.num_prompts
        assert found["prompts_sha256"] == prompts_hash(given_ones.tasks)
        pasta, sequential = (found["strategies"][name] for name in ("pasta", "sequential"))
        assert pasta.keys() >= OF_STRATEGY | DECISIONS
        assert sequential.keys() >= OF_STRATEGY
        assert not sequential.keys() & DECISIONS
        assert pasta["families"].keys() == {*TRAINED}
        assert pasta["held_out"]["families"].keys() == {*HELD_OUT}
        for figures in pasta["families"].values():
            assert figures.keys() >= OF_STRATEGY - {"families"}
        assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_headlines_exclude_held_out_families(answers: TaskEvaluation) -> None:
    found = strategies_of(ALL, answers)["pasta"]
    for names, figures in (
        (TRAINED, found),
        (HELD_OUT, found["held_out"]),
        *(((name,), found["families"][name]) for name in TRAINED),
    ):
        tasks = [task for task in answers.tasks if task.family in names]
        ours, theirs = (
            [row for row in answers.scored[name] if row.family in names]
            for name in ("pasta", "sequential")
        )
        expected = quality(ours, theirs) | to_json(speed(ours, theirs)) | decisions(tasks, ours)
        assert {name: figures[name] for name in expected} == expected


def test_timed_answers_equal_batched_answers(timed: TaskEvaluation) -> None:
    assert timed.num_timed == len(timed.tasks)
    for name in ("sequential", "pasta"):
        for alone, among in zip(timed.timed[name], timed.scored[name], strict=True):
            assert (alone.task_id, alone.program) == (among.task_id, among.program)
            assert alone.wall_s is not None
            assert alone.wall_s > 0
            assert among.wall_s is None


def test_the_report_uses_the_clocks(timed: TaskEvaluation) -> None:
    found = strategies_of(TIMED, timed)
    assert [*found] == ["sequential", "pasta", PERFECT]
    for name in found:
        ours, theirs = (timed.timed[one][:4] for one in (name, "sequential"))
        assert (
            found[name]["realised_speedup"] == to_json(realised(ours, theirs))["realised_speedup"]
        )
        assert (found[name]["num_timed"], found[name]["held_out"]["num_timed"]) == (4, 4)
    assert found["sequential"]["realised_speedup"] == {"mean": 1, "low": 1, "high": 1}


def test_perfect_forks_are_the_references_with_their_true_structure(timed: TaskEvaluation) -> None:
    for task, row in zip(timed.tasks, timed.timed[PERFECT], strict=True):
        assert (row.text, row.grade) == (task.text, 1.0)
        assert row.structure == true_structure(task)
        assert row.is_well_formed
    figures = strategies_of(TIMED, timed)[PERFECT]
    assert figures["kind"] == "replayed"
    assert "quality" not in figures  # it would be no answer of the model's


def test_unmasked_answers_are_decoded_without_the_mask(timed: TaskEvaluation) -> None:
    free = timed.unmasked[UNMASKED["pasta"]]
    params = SamplingParams(max_tokens=MAX_TOKENS, mask=False)
    for task, row in zip(timed.tasks, free, strict=True):
        assert same(row, MODEL.generate(task.prompt, params))
    assert any(row.num_illegal for row in free)
    assert not any(row.num_illegal for row in timed.scored["pasta"])
    well_formed = sum(row.is_well_formed for row in free[:4]) / 4
    assert strategies_of(TIMED, timed)["pasta"]["well_formed_unmasked"] == well_formed


def test_records_have_the_answers_of_every_round(timed: TaskEvaluation) -> None:
    rows = timed.records()
    num = len(timed.tasks)
    assert len(rows) == 6 * num
    kinds = Counter((row.strategy, row.wall_s is not None) for row in rows)
    names = [("sequential", False), ("pasta", False), ("sequential", True), ("pasta", True)]
    assert kinds == {key: num for key in [*names, (PERFECT, True), (UNMASKED["pasta"], False)]}


def test_a_model_without_tag_pieces_has_no_fork_precision(
    capsys: pytest.CaptureFixture[str],
) -> None:
    untaught = tiny("untaught", has_tag_pieces=False)
    settings = TaskSettings(num_prompts=2, num_timed=1, max_tokens=4)
    answers = evaluate_tasks(settings, untaught, untaught, lambda *_: None)
    found = report(settings, answers, untaught, untaught)["strategies"]
    assert capsys.readouterr().err.count("not taught") == 1
    assert [*found] == ["sequential", "pasta"]
    assert found["pasta"]["fork_precision"] is None
    assert found["pasta"]["fork_recall"]["mean"] == 0
    assert found["pasta"]["well_formed_unmasked"] is None
    assert found["pasta"]["win_rate"] == {"mean": 0.5, "low": 0.5, "high": 0.5}
    assert found["pasta"]["theoretical_speedup"]["mean"] == 1
