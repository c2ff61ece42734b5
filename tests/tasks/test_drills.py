"""Drills: every answer stands in the prompt, under the record and the head that it names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.tasks import make
from pasta_lm.tasks.draw import owns_word
from pasta_lm.tasks.drills import CLAUSES, MOST_QUESTIONS, SEPARATORS, Drill, clause_drill, drill
from pasta_lm.tasks.formats import CHAIN_LABEL, FREE_LABEL
from pasta_lm.tasks.task import Split

seeds = st.integers(0, 10_000_000)


def records(prompt: str) -> dict[str, dict[str, str]]:
    """Read a prompt, whichever its layout, as the cells of each record by their heads."""
    lines = prompt.split("\n")
    if " | " in lines[0]:
        heads, *rows = [line.split(" | ") for line in lines]
        return {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}
    split = [line.split(": ") for line in lines]
    return {name: dict(map(_field, cells.split(", "))) for name, cells in split}


def _field(text: str) -> tuple[str, str]:
    head, cell = text.rsplit(" ", 1)
    return head, cell


def answers(drawn: Drill) -> list[str]:
    found = re.split("|".join(map(re.escape, SEPARATORS)), drawn.answer)
    numbers = [re.match(r"Step (\d+): ", answer) for answer in found]
    if any(numbers):
        assert [match and int(match[1]) for match in numbers] == [*range(1, len(found) + 1)]
    return [
        answer[match.end() if match else 0 :] for answer, match in zip(found, numbers, strict=True)
    ]


@given(seeds)
def test_every_answer_is_a_cell_or_a_record_of_the_prompt(seed: int) -> None:
    drawn = drill(seed)
    table = records(drawn.prompt)
    cells = {f"{name} {head} {cell}" for name, row in table.items() for head, cell in row.items()}
    whole = {" ".join((name, *row.values())) for name, row in table.items()}
    found = answers(drawn)
    assert {*found} <= cells or {*found} == whole
    assert len({*found}) == len(found) <= max(MOST_QUESTIONS, len(table))


@given(seeds, st.integers(2, 8), st.integers(1, 5))
def test_a_drill_is_no_larger_than_asked(seed: int, most_records: int, most_columns: int) -> None:
    table = records(drill(seed, most_records=most_records, most_columns=most_columns).prompt)
    assert 2 <= len(table) <= most_records
    assert all(1 <= len(row) <= most_columns for row in table.values())


@pytest.mark.parametrize("seed", range(50))
def test_names_and_words_are_those_of_the_training_split(seed: int) -> None:
    assert all(owns_word(Split.TRAIN, name) for name in records(drill(seed).prompt))


def test_the_same_seed_gives_the_same_drill_and_another_another() -> None:
    assert [drill(seed) for seed in range(20)] == [drill(seed) for seed in range(20)]
    assert len({drill(seed) for seed in range(200)}) == 200
    assert {bool(re.search(r" \| ", drill(seed).prompt)) for seed in range(20)} == {True, False}
    assert {drill(seed).prompt.split("\n")[1][0].isupper() for seed in range(20)} == {True, False}
    assert {drill(seed).answer.startswith("Step 1: ") for seed in range(20)} == {True, False}


def test_a_drill_says_which_side_its_clause_is_on() -> None:
    shown = {"alone": 0, "beside": 0}
    for seed in range(300):
        found = clause_drill(seed)
        assert found == clause_drill(seed)
        assert found.answer in (FREE_LABEL, CHAIN_LABEL)
        for _, *families in CLAUSES:
            for side, family in enumerate(families):
                task = make(family, "train", seed, max_records=3)
                if found.prompt in (task.prompt, task.prompt.replace(task.records, "").strip()):
                    assert found.answer == (FREE_LABEL, CHAIN_LABEL)[side]
                    shown["beside"] += 1
                    break
    assert 0.3 * 300 < shown["beside"] < 0.5 * 300


def test_both_sides_and_every_clause_are_asked_alike_often() -> None:
    answers = [clause_drill(seed).answer for seed in range(1000)]
    assert 420 < answers.count(FREE_LABEL) < 580
