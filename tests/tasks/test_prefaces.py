"""How an answer begins where one clause decides, and what of it is graded and forked."""

from __future__ import annotations

import pytest

from pasta_lm.language.document import Block
from pasta_lm.tasks import Dependence, Task, make
from pasta_lm.tasks.annotators import ANNOTATORS
from pasta_lm.tasks.drills import CLAUSES
from pasta_lm.tasks.grader import grade
from pasta_lm.tasks.prefaces import CHAIN, FREE
from pasta_lm.tasks.referee import referee_grade
from pasta_lm.tasks.registry import FAMILIES

PREFACED = tuple(family for _, *pair in CLAUSES for family in pair)


def drawn(family: str) -> list[Task]:
    return [make(family, split, seed) for split in ("train", "dev", "hard") for seed in range(4)]


def test_an_answer_has_a_preface_where_a_clause_decides_item_by_item() -> None:
    assert len(PREFACED) == 10
    for family in FAMILIES:
        for task in drawn(family):
            assert bool(task.preface) is (family in PREFACED)


@pytest.mark.parametrize("family", PREFACED)
def test_a_preface_says_on_which_side_the_clause_is(family: str) -> None:
    for task in drawn(family):
        said = CHAIN if task.dependence is Dependence.CHAIN else FREE
        assert task.preface.rstrip() == said
        assert task.text == task.preface + task.body
        assert task.preface != said  # white space stands between it and the first item


@pytest.mark.parametrize("family", PREFACED)
def test_no_grade_asks_for_an_preface(family: str) -> None:
    for task in drawn(family):
        for grader in (grade, referee_grade):
            assert grader(task, task.text) == grader(task, task.body) == 1.0


@pytest.mark.parametrize("name", ANNOTATORS)
def test_no_annotator_forks_an_preface(name: str) -> None:
    for family in PREFACED:
        for task in drawn(family):
            document = ANNOTATORS[name](task, 3)
            assert not isinstance(document.items[0], Block)
            assert document.plain_text == task.text
            assert all(task.preface.rstrip() not in b.plain_text for b in document.blocks)
