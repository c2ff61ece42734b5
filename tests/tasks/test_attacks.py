from __future__ import annotations

import itertools

import pytest

from pasta_lm.tasks import FAMILIES, Task, make
from pasta_lm.tasks.grader import grade
from pasta_lm.tasks.referee import referee_grade
from tests.tasks.attacks import attacks

SEEDS = range(15)
MOST = 0.10
ALWAYS = {
    *("empty", "constant", "tags", "prompt", "table", "headings", "filler"),
    *("candidates", "candidates_everywhere"),
}


def tasks(family: str, *splits: str) -> list[Task]:
    return [make(family, split, seed) for split, seed in itertools.product(splits, SEEDS)]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_attack_is_paid_by_either_grader(family: str) -> None:
    for task in tasks(family, "train", "test"):
        for name, text in attacks(task).items():
            assert grade(task, text) <= MOST, (task.id, name)
            assert referee_grade(task, text) <= MOST, (task.id, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_attack_is_never_the_answer_and_the_plain_ones_are_always_made(family: str) -> None:
    for task in tasks(family, "test"):
        made = attacks(task)
        assert made.keys() >= ALWAYS
        assert task.text not in made.values()
        assert ("reversed" in made) == task.ordered


@pytest.mark.parametrize("family", FAMILIES)
def test_right_values_on_wrong_entities_can_be_tried_on_most_tasks(family: str) -> None:
    made = [attacks(task) for task in tasks(family, "train", "test")]
    assert sum("wrong_entities" in texts for texts in made) > len(made) / 2
    assert family == "single_answer" or any("one_block" in texts for texts in made)


def test_values_are_moved_whole_and_anchors_stay() -> None:
    task = make("profiles", "test", 0)
    text = attacks(task)["wrong_entities"]
    for unit in task.units:
        assert unit.anchor in text
        assert unit.text not in text
        assert all(fact.value in text for fact in unit.facts)


def test_the_one_entity_asked_for_gets_the_values_of_another() -> None:
    task = make("single_answer", "test", 1)
    (unit,) = task.units
    text = attacks(task)["wrong_entities"]
    assert unit.anchor in text
    assert not any(fact.value in text.split() for fact in unit.facts)
    assert len(text.split()) == len(task.text.split())


def test_another_seed_moves_the_values_elsewhere() -> None:
    task = make("menus", "hard", 0)
    assert attacks(task, 1) == attacks(task, 1)
    assert len({attacks(task, seed)["wrong_entities"] for seed in range(5)}) > 1
