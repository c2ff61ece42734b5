"""The label with which the answers of ten families begin: its place, its grade, no fork."""

from __future__ import annotations

import pytest

from lab.tests.tasks.grader import grade
from lab.tests.tasks.reading import LABELLED
from pasta_lab.tasks import Dependence, Task, make
from pasta_lab.tasks.formats import CHAIN_LABEL, FREE_LABEL
from pasta_lab.tasks.gold import gold
from pasta_lab.tasks.referee import referee_grade
from pasta_lm.language.document import Block


def drawn(family: str) -> list[Task]:
    return [make(family, split, seed) for split in ("train", "dev", "hard") for seed in range(4)]


@pytest.mark.parametrize("family", LABELLED)
def test_the_label_says_on_which_side_the_clause_is(family: str) -> None:
    for task in drawn(family):
        said = CHAIN_LABEL if task.dependence is Dependence.CHAIN else FREE_LABEL
        assert task.preface.rstrip() == said
        assert task.text == task.preface + task.body
        assert task.preface != said  # white space stands between it and the first item


@pytest.mark.parametrize("family", LABELLED)
def test_no_grader_asks_for_the_label(family: str) -> None:
    for task in drawn(family):
        for grader in (grade, referee_grade):
            assert grader(task, task.text) == grader(task, task.body) == 1.0


@pytest.mark.parametrize("family", LABELLED)
def test_the_label_is_not_forked(family: str) -> None:
    for task in drawn(family):
        document = gold(task)
        assert not isinstance(document.items[0], Block)
        assert all(task.preface.rstrip() not in b.plain_text for b in document.blocks)
