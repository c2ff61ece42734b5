from __future__ import annotations

import itertools

import pytest

from lab.tests.tasks.attacks import attacks
from pasta_lab.tasks import FAMILIES, Task, make
from pasta_lab.tasks.grader import grade
from pasta_lab.tasks.referee import referee_grade

SEEDS = range(15)
MAX_GRADE = 0.10
ALWAYS = {
    *("empty", "constant", "tags", "prompt", "table", "headings", "filler"),
    *("candidates", "candidates_everywhere"),
}


def tasks(family: str, *splits: str) -> list[Task]:
    return [make(family, split, seed) for split, seed in itertools.product(splits, SEEDS)]


@pytest.mark.parametrize("family", FAMILIES)
def test_attacks_have_a_low_grade_with_both_graders(family: str) -> None:
    for task in tasks(family, "train", "test"):
        for name, text in attacks(task).items():
            assert grade(task, text) <= MAX_GRADE, (task.id, name)
            assert referee_grade(task, text) <= MAX_GRADE, (task.id, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_attack_is_the_answer_and_simple_attacks_always_exist(family: str) -> None:
    for task in tasks(family, "test"):
        made = attacks(task)
        assert made.keys() >= ALWAYS
        assert task.text not in made.values()
        assert ("reversed" in made) == task.ordered


@pytest.mark.parametrize("family", FAMILIES)
def test_most_tasks_have_the_attack_by_wrong_entities(family: str) -> None:
    made = [attacks(task) for task in tasks(family, "train", "test")]
    assert sum("wrong_entities" in texts for texts in made) > len(made) / 2
    assert family == "single_answer" or any("one_block" in texts for texts in made)


def test_wrong_entities_keep_all_anchors_and_values() -> None:
    task = make("profiles", "test", 0)
    text = attacks(task)["wrong_entities"]
    for unit in task.units:
        assert unit.anchor in text
        assert unit.text not in text
        assert all(fact.value in text for fact in unit.facts)


def test_a_single_entity_gets_the_values_of_another() -> None:
    task = make("single_answer", "test", 1)
    (unit,) = task.units
    text = attacks(task)["wrong_entities"]
    assert unit.anchor in text
    assert not any(fact.value in text.split() for fact in unit.facts)
    assert len(text.split()) == len(task.text.split())


def test_the_seed_decides_which_entity_gets_which_values() -> None:
    task = make("menus", "hard", 0)
    assert attacks(task, 1) == attacks(task, 1)
    assert len({attacks(task, seed)["wrong_entities"] for seed in range(5)}) > 1
