"""Reusing the baseline's answers from records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pasta_lab.evaluate.records import NUM_CHECKED, GradedAnswer, reused, write_answers
from pasta_lab.evaluate.tasks import (
    TaskSettings,
    choose_tasks,
    evaluate_tasks,
    graded,
    prompts_of,
)
from pasta_lab.tasks import Task
from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError
from pasta_lm.measure.answering import Answerer, AnswerStore, Progress, System
from pasta_lm.strategies.model import Pasta
from tests.measure.tiny import tiny

PARAMS = SamplingParams(max_tokens=8)
MODEL, BASELINE, OTHER = tiny("ours", seed=7), tiny("theirs", seed=1), tiny("other", seed=2)
TASKS, _ = choose_tasks(TaskSettings(num_prompts=NUM_CHECKED + 10, num_timed=0))
SYSTEM = System("sequential", "sequential", "baseline")


def answerer(model: Pasta, progress: Progress = lambda *_: None) -> Answerer:
    return Answerer(models={"baseline": model}, params=PARAMS, progress=progress)


def reused_answers(
    records: Path,
    tasks: Sequence[Task] = TASKS,
    model: Pasta = BASELINE,
    progress: Progress = lambda *_: None,
) -> list[GradedAnswer]:
    known = reused(records, prompts_of(tasks), SYSTEM, answerer(model, progress))
    return graded(tasks, "sequential", [decoded.record for _, _, decoded in known])


@pytest.fixture(scope="module")
def answers() -> list[GradedAnswer]:
    store, prompts = AnswerStore(), prompts_of(TASKS)
    answerer(BASELINE).answer_together(prompts, [SYSTEM], store)
    return graded(TASKS, "sequential", store.answers("sequential", prompts))


@pytest.fixture
def records(tmp_path: Path, answers: list[GradedAnswer]) -> Path:
    path = tmp_path / "records.jsonl"
    write_answers(path, answers)
    return path


def test_reused_answers_equal_decoded_answers(records: Path, answers: list[GradedAnswer]) -> None:
    assert reused_answers(records) == answers


def test_only_the_first_prompts_are_decoded_again(records: Path) -> None:
    told: list[tuple[str, int, int]] = []
    reused_answers(records, progress=lambda *one: told.append(one))
    assert told == [("sequential", NUM_CHECKED, NUM_CHECKED)]


def test_answers_are_found_by_prompt_among_other_records(
    records: Path, answers: list[GradedAnswer]
) -> None:
    clocks = [replace(one, wall_s=1.0, text="alone") for one in answers]
    others = [replace(one, strategy="pasta", text="forked") for one in answers]
    write_answers(records, [*reversed(answers), *clocks, *others])
    fewer = TASKS[5:-5]
    assert reused_answers(records, fewer) == answers[5:-5]


def test_reused_answers_are_graded_again(records: Path, answers: list[GradedAnswer]) -> None:
    write_answers(records, [replace(one, grade=0.75) for one in answers])
    assert reused_answers(records) == answers


def test_a_prompt_without_an_answer_is_refused(records: Path, answers: list[GradedAnswer]) -> None:
    write_answers(records, answers[:-2])
    named = f"no sequential answer to 2 of {len(TASKS)} prompts, {TASKS[-2].id} first"
    with pytest.raises(InputError, match=named):
        reused_answers(records)


def test_the_answers_of_another_model_are_refused(records: Path) -> None:
    with pytest.raises(InputError, match=f"of {NUM_CHECKED} answers are not the baseline's"):
        reused_answers(records, model=OTHER)


def test_one_different_answer_is_tolerated(records: Path, answers: list[GradedAnswer]) -> None:
    one = replace(answers[0], text="rounded")
    write_answers(records, [one, *answers[1:]])
    assert reused_answers(records)[0].text == "rounded"
    write_answers(records, [one, replace(answers[1], text="too"), *answers[2:]])
    with pytest.raises(InputError, match="2 of 25"):
        reused_answers(records)


def test_an_evaluation_with_reused_answers_is_the_same(records: Path) -> None:
    settings = TaskSettings(num_prompts=len(TASKS) // 2, num_timed=0, max_tokens=8)
    usual = evaluate_tasks(settings, MODEL, BASELINE, lambda *_: None)
    assert {task.id for task in usual.tasks} <= {task.id for task in TASKS}
    shared = replace(settings, baseline_records=str(records))
    assert evaluate_tasks(shared, MODEL, BASELINE, lambda *_: None) == usual
