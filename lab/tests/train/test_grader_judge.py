"""The training grader as a judge: confidence is the difference of grades."""

from __future__ import annotations

import pytest

from pasta_lab.tasks import make
from pasta_lab.tasks.grader import grade
from pasta_lab.train import GraderJudge
from pasta_lm.learn.judge.judge import Winner, both_orders, smoothed_ratio

TASK = make("takings", "train", 3)
HALF = TASK.text[: len(TASK.text) // 2]


def verdicts(ours: str, theirs: str) -> list[tuple[Winner, float]]:
    asked = both_orders(TASK.id, TASK.prompt, ours, theirs)
    return [(verdict.winner, verdict.confidence) for verdict in GraderJudge([TASK]).compare(asked)]


def test_the_better_grade_wins_in_both_orders_by_the_difference() -> None:
    worth = grade(TASK, HALF)
    assert 0 < worth < 1 == grade(TASK, TASK.text)
    assert verdicts(HALF, TASK.text) == [
        (Winner.SECOND, pytest.approx(1 - worth)),
        (Winner.FIRST, pytest.approx(1 - worth)),
    ]
    assert verdicts(TASK.text, "") == [(Winner.FIRST, 1.0), (Winner.SECOND, 1.0)]


def test_equal_grades_are_a_tie() -> None:
    assert verdicts(TASK.text, TASK.text) == [(Winner.TIE, 0.0)] * 2
    assert verdicts("nothing", "") == [(Winner.TIE, 0.0)] * 2


def test_quality_of_perfect_partial_and_empty_answers() -> None:
    judge, worth = GraderJudge([TASK]), grade(TASK, HALF)
    for text, expected in ((TASK.text, 1.0), (HALF, 1 / (1 + 2 * (1 - worth))), ("", 1 / 3)):
        asked = both_orders(TASK.id, TASK.prompt, text, TASK.text)
        assert smoothed_ratio(judge.compare(asked), 1.0) == pytest.approx(expected)
