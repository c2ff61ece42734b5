from __future__ import annotations

import itertools

import pytest

from lab.tests.tasks.attacks import attacks
from lab.tests.tasks.grader import grade
from pasta_lab.tasks import FAMILIES, Task, make
from pasta_lab.tasks.referee import referee_grade

SEEDS = range(15)
MAX_GRADE = 0.10


def tasks(family: str, *splits: str) -> list[Task]:
    return [make(family, split, seed) for split, seed in itertools.product(splits, SEEDS)]


@pytest.mark.parametrize("family", FAMILIES)
def test_attacks_have_a_low_grade_with_both_graders(family: str) -> None:
    for task in tasks(family, "train", "test"):
        for name, text in attacks(task).items():
            assert grade(task, text) <= MAX_GRADE, (task.id, name)
            assert referee_grade(task, text) <= MAX_GRADE, (task.id, name)
