from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from lab.tests.tasks.grader import grade
from lab.tests.tasks.reading import corrupted, joined, without
from pasta_lab.tasks import FAMILIES, Dependence, Fact, Split, Task, Unit, make
from pasta_lab.tasks.referee import referee_grade

Grader = Callable[[Task, str], float]

SEEDS = range(15)
CLOSE = 0.05
both = pytest.mark.parametrize("grader", [grade, referee_grade], ids=["grader", "referee"])

ANN = "Ann: works as baker. Ann is 42 years old."
BEN = "Ben: works as pilot. Ben is 37 years old."


def unit(name: str, job: str, age: str, text: str) -> Unit:
    return Unit(text, name, name, (Fact(job, ("works",)), Fact(age, ("years",))))


TASK = Task(
    id="people-test-0",
    family="people",
    split=Split.TEST,
    prompt="Ann: baker, 42\nBen: pilot, 37\nDescribe them.",
    units=(unit("Ann", "baker", "42", ANN), unit("Ben", "pilot", "37", BEN)),
    records="Ann: baker, 42\nBen: pilot, 37",
    candidates=frozenset({"baker", "pilot", "42", "37"}),
    dependence=Dependence.FREE,
)
WORDS_TASK = replace(
    TASK,
    units=tuple(
        Unit(f"{name} has the word {word}.", name, name, (Fact(word, ("word",)), Fact(name)))
        for name, word in (("Ann", "red"), ("Ben", "blue"))
    ),
    candidates=frozenset(),
    palette=frozenset({"red", "blue", "green"}),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_has_grade_one(family: str) -> None:
    for split, seed in itertools.product(Split, SEEDS):
        task = make(family, split, seed)
        assert grade(task, task.text) == referee_grade(task, task.text) == 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_deleted_fact_lowers_the_grade(family: str) -> None:
    for seed in range(4):
        task = make(family, "test", seed)
        for index, unit in enumerate(task.units):
            for fact in unit.facts:
                texts = [unit.text for unit in task.units]
                texts[index] = without(unit, fact.value)
                text = joined(task, texts)
                assert grade(task, text) < 1.0, (task.id, fact)
                assert referee_grade(task, text) < 1.0, (task.id, fact)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_unit_left_out_costs_its_weight(family: str) -> None:
    for seed in range(5):
        task = make(family, "test", seed)
        weights = [unit.weight for unit in task.units]
        last = task.text[: task.text.rindex(task.units[-1].text)].rstrip()
        expected = 1.0 - weights[-1] / sum(weights)
        assert grade(task, last) == pytest.approx(expected)
        assert referee_grade(task, last) == pytest.approx(expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_graders_agree_on_answers_that_are_partly_wrong(family: str) -> None:
    random = Random(f"corrupt/{family}")
    grades = []
    for seed, split in itertools.product(SEEDS, ("train", "test")):
        task = make(family, split, seed)
        for _ in range(2):
            text = corrupted(task.text, random)
            grades.append(grade(task, text))
            assert referee_grade(task, text) == pytest.approx(grades[-1], abs=CLOSE), text
    assert len({*grades}) > 3, "or the agreement says nothing"


@both
def test_other_words_around_the_facts_do_not_lower_the_grade(grader: Grader) -> None:
    assert grader(TASK, "Ben works as a pilot, 37 years old.\nAnn works as a baker, 42 years.") == 1


@both
def test_a_fact_without_its_cue_does_not_count(grader: Grader) -> None:
    assert grader(TASK, TASK.text.replace("works as", "is")) == 0.5
    assert grader(TASK, TASK.text.replace("works as baker", "works. A baker")) == 0.75


@both
def test_a_value_must_be_a_whole_word(grader: Grader) -> None:
    assert grader(TASK, TASK.text.replace("baker", "bakery")) == 0.75
    assert grader(TASK, TASK.text.replace("42", "4 2")) < 0.75


@both
def test_a_value_or_a_number_of_another_unit_costs_the_whole_unit(grader: Grader) -> None:
    assert grader(TASK, f"{ANN} Not a pilot.\n{BEN}") == 0.5
    assert grader(TASK, f"{ANN} Not 41.\n{BEN}") == 0.5


@both
def test_facts_under_no_anchor_or_a_wrong_one_do_not_count(grader: Grader) -> None:
    assert grader(TASK, "works as baker, 42 years") == 0.0
    assert grader(TASK, f"{ANN.replace('Ann', 'Ben')}\n{BEN.replace('Ben', 'Ann')}") == 0.0


@both
def test_the_number_of_the_next_item_belongs_to_no_unit(grader: Grader) -> None:
    units = tuple(replace(u, text=f"{i}. {u.text}") for i, u in enumerate(TASK.units, 1))
    listed = replace(TASK, units=units)
    assert grader(listed, listed.text) == 1.0
    assert grader(listed, listed.text.replace("2. Ben", "7) Ben")) == 1.0
    assert grader(listed, listed.text.replace("2. Ben", "and 7 Ben")) < 1.0


@both
def test_order_counts_only_in_ordered_tasks(grader: Grader) -> None:
    swapped = f"{BEN}\n{ANN}"
    assert grader(TASK, swapped) == 1.0
    assert grader(replace(TASK, ordered=True), swapped) == 0.0
    assert grader(replace(TASK, ordered=True), BEN) == 0.5


@both
def test_the_grade_falls_from_a_quarter_more_words_to_zero_at_twice(grader: Grader) -> None:
    assert len(TASK.text.split()) == 18
    for extra, value in {0: 1.0, 4: 1.0, 9: 2 / 3, 18: 0.0, 90: 0.0}.items():
        padded = TASK.text + "\n" + " ".join(f"w{'x' * i}" for i in range(extra))
        assert grader(TASK, padded) == pytest.approx(value)


@both
def test_a_repeated_sentence_makes_the_grade_zero(grader: Grader) -> None:
    assert grader(TASK, f"{TASK.text}\nBen is 37 years old.") == 0.0
    assert grader(TASK, f"{TASK.text}\nThat is all.\nThat is all.") == pytest.approx(1.0, abs=0.2)
    assert grader(TASK, f"{TASK.text}\nThat is all.\nThat is all.") > 0.0


@both
def test_any_word_of_the_palette_counts_if_no_other_unit_has_it(grader: Grader) -> None:
    def says(one: str, other: str) -> float:
        return grader(WORDS_TASK, f"Ann has the word {one}.\nBen has the word {other}.")

    assert says("red", "blue") == says("green", "red") == 1.0
    assert says("green", "green") == 0.75
    assert says("red green", "blue") == 0.75
    assert says("grey", "blue") == 0.75


@both
@pytest.mark.parametrize("text", ["", " \n ", "|", "1.", "\n2)", "Ann", "Step", "\u00e9\u200b" * 9])
def test_any_text_has_a_grade(grader: Grader, text: str) -> None:
    assert 0.0 <= grader(TASK, text) <= 1.0
