"""The baseline's answers are taken from records only if they are the baseline's, and all there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError
from pasta_lm.evaluate.answered import Answered, write_answers
from pasta_lm.evaluate.answering import answer_all
from pasta_lm.evaluate.reuse import NUM_CHECKED, reused
from pasta_lm.evaluate.tasks import TaskSettings, answer_tasks, choose_tasks
from tests.evaluate.tiny import tiny

PARAMS = SamplingParams(max_tokens=8)
MODEL, BASELINE, OTHER = tiny("ours", seed=7), tiny("theirs", seed=1), tiny("other", seed=2)
TASKS, _ = choose_tasks(TaskSettings(num_prompts=NUM_CHECKED + 10, num_timed=0))


@pytest.fixture(scope="module")
def answers() -> list[Answered]:
    return answer_all(BASELINE, TASKS, "sequential", PARAMS, lambda *_: None)


@pytest.fixture
def records(tmp_path: Path, answers: list[Answered]) -> Path:
    path = tmp_path / "records.jsonl"
    write_answers(path, answers)
    return path


def test_they_are_those_that_would_be_decoded(records: Path, answers: list[Answered]) -> None:
    assert reused(records, TASKS, BASELINE, PARAMS, lambda *_: None) == answers


def test_only_the_first_prompts_are_decoded_again(records: Path) -> None:
    told: list[tuple[str, int, int]] = []
    reused(records, TASKS, BASELINE, PARAMS, lambda *one: told.append(one))
    assert told == [("sequential", NUM_CHECKED, NUM_CHECKED)]


def test_they_are_found_by_prompt_whatever_stands_beside_them(
    records: Path, answers: list[Answered]
) -> None:
    clocks = [replace(one, wall_s=1.0, text="alone") for one in answers]
    others = [replace(one, strategy="pasta", text="forked") for one in answers]
    write_answers(records, [*reversed(answers), *clocks, *others])
    fewer = TASKS[5:-5]
    assert reused(records, fewer, BASELINE, PARAMS, lambda *_: None) == answers[5:-5]


def test_they_are_graded_anew(records: Path, answers: list[Answered]) -> None:
    write_answers(records, [replace(one, grade=0.75) for one in answers])
    assert reused(records, TASKS, BASELINE, PARAMS, lambda *_: None) == answers


def test_a_prompt_without_an_answer_is_named(records: Path, answers: list[Answered]) -> None:
    write_answers(records, answers[:-2])
    named = f"no sequential answer to 2 of {len(TASKS)} prompts, {TASKS[-2].id} first"
    with pytest.raises(InputError, match=named):
        reused(records, TASKS, BASELINE, PARAMS, lambda *_: None)


def test_the_answers_of_another_model_are_refused(records: Path) -> None:
    with pytest.raises(InputError, match=f"of {NUM_CHECKED} answers are not the baseline's"):
        reused(records, TASKS, OTHER, PARAMS, lambda *_: None)


def test_rounding_may_change_one_answer_and_no_more(records: Path, answers: list[Answered]) -> None:
    one = replace(answers[0], text="rounded")
    write_answers(records, [one, *answers[1:]])
    assert reused(records, TASKS, BASELINE, PARAMS, lambda *_: None)[0].text == "rounded"
    write_answers(records, [one, replace(answers[1], text="too"), *answers[2:]])
    with pytest.raises(InputError, match="2 of 25"):
        reused(records, TASKS, BASELINE, PARAMS, lambda *_: None)


def test_an_evaluation_with_them_has_the_same_answers(records: Path) -> None:
    settings = TaskSettings(num_prompts=len(TASKS) // 2, num_timed=0, max_tokens=8)
    usual = answer_tasks(settings, MODEL, BASELINE, lambda *_: None)
    assert {task.id for task in usual.tasks} <= {task.id for task in TASKS}
    shared = replace(settings, baseline_records=records)
    assert answer_tasks(shared, MODEL, BASELINE, lambda *_: None) == usual
