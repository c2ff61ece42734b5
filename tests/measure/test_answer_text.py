"""Measures of text find what was planted: a repetition, a missing item."""

from __future__ import annotations

import pytest

from pasta_lm.measure.answer_text import coverage, items_asked, items_given, repetition

FRUIT = "Eat fruit every day."
WATER = "Drink a glass of water."


@pytest.mark.parametrize(
    ("text", "expected"),
    [(f"{FRUIT} {WATER}", 0), (f"{FRUIT[:-1]} {FRUIT}", 1 / 5), ("eat fruit", 0)],
)
def test_repetition_is_the_share_of_word_sequences_seen_before(text: str, expected: float) -> None:
    assert repetition(text) == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Give me five tips for a job interview.", 5),
        ("List 10 interesting facts about bees", 10),
        ("Name three countries.", 3),
        ("twenty names of famous horses", 20),
        ("Write 300 words on bees.", None),
        ("Write 4 paragraphs about tips.", None),
        ("Give me one idea.", None),
        ("Three pros and three cons of remote work", None),
        ("Why is the sky blue?", None),
        ("Write 99 ideas", None),
    ],
)
def test_the_number_of_items_that_a_prompt_asks_for(prompt: str, expected: int | None) -> None:
    assert items_asked(prompt) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Here are three:\n\n1. Eat.\n2. Sleep.\n3. Walk.", 3),
        ("1. Eat.\n   - fruit\n   - bread\n2. Sleep.", 2),
        ("- Eat.\n- Sleep.\n- eat", 2),
        ("**Eat:** fruit\n\n**Sleep:** well\n\nThat is all.", 2),
        ("Some tips:\nEat.\nSleep.", 2),
        ("Eat well. Sleep at night. Walk!", 3),
        ("", 0),
    ],
)
def test_the_number_of_different_items_that_an_answer_gives(text: str, expected: int) -> None:
    assert items_given(text) == expected


def test_coverage_sees_a_missing_item_and_a_doubled_one() -> None:
    whole = "1. Eat.\n2. Sleep.\n3. Walk."
    assert coverage(3, whole) == 1
    assert coverage(3, whole + "\n4. Read.") == 1
    assert coverage(3, "1. Eat.\n2. Sleep.") == pytest.approx(2 / 3)
    assert coverage(3, "1. Eat.\n2. Sleep.\n3. Sleep.") == pytest.approx(2 / 3)
