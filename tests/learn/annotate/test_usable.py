"""Answers that nobody should learn from are left out, each for one named reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from pasta_lm.learn.annotate.own_answers import repeated_words, why_unusable
from pasta_lm.learn.data.annotated import read_records

STARTER = Path(__file__).parents[3] / "corpora" / "starter" / "starter.jsonl"

SENTENCE = "The river rises in the hills and turns to the south before it reaches the sea."
ITEM = "It is a good choice for a family with two small children and a dog."

UNUSABLE = [
    ("Name a river.", "", "empty"),
    ("Name a river.", "The Rhine", "empty"),
    ("Name a river.", "...!", "empty"),
    ("Name a river.", f"{SENTENCE} \ufffd\ufffd", "garbage"),
    ("Name a river.", f"{SENTENCE} \x00", "garbage"),
    ("Name a river.", "It is the " + "ab" * 40, "garbage"),
    ("Name a river.", "Это большая река на юге.", "language"),
    ("Name a river.", "As an AI language model, I have no rivers.", "refusal"),
    ("Name a river.", "I'm sorry for the confusion, but as a chatbot, I only chat.", "refusal"),
    ("Name a river.", "I’m sorry, but I can’t assist with that.", "refusal"),
    ("Name a river.", "I'm not equipped to provide names.", "refusal"),
    ("Name five rivers of the north.", "Name five rivers of the north.", "echo"),
    ('Make this spooky: "We walked to the gate."', "We walked to the gate.", "echo"),
    ("Name rivers.", f"{SENTENCE} {SENTENCE} {SENTENCE}", "loops"),
    ("Name rivers.", "1. Rhine\n2. Elbe\n3. Rhine\n4. Elbe\n5. Rhine", "loops"),
    (
        "Two dogs?",
        f"Here are two:\n\n- **Pug**: {ITEM}\n- **Lab**: {ITEM}\n- **Pom**: {ITEM}",
        "loops",
    ),
]

USABLE = [
    ("Name a river.", "It's the Rhine."),
    ("Name a river.", SENTENCE),
    ("Write to my boss that I am ill.", "I'm sorry, but I can't come in today: I have a fever."),
    ("Translate into Russian: a big river", "Это большая река."),
    ("How do you spell москва?", "Москва, столица России."),
    ("Which is heavier, a kilo of feathers or a kilo of lead on the moon?", "A kilo of lead."),
    ("Link?", "See https://example.org/" + "a" * 80 + " for more."),
    ("Name rivers.", f"{SENTENCE} It is long. {SENTENCE[:20]}"),
    ("Name rivers.", "1. Rhine\n2. Elbe\n3. Oder\n4. Main\n5. Rhine"),
    ("Add?", "```py\na + b\n```\nand\n```py\nsum(ab)\n```\nor\n```py\nadd(a, b)\n```"),
]


@pytest.mark.parametrize(("instruction", "answer", "reason"), UNUSABLE)
def test_an_unusable_answer_has_a_reason(instruction: str, answer: str, reason: str) -> None:
    assert why_unusable(instruction, answer) == reason


@pytest.mark.parametrize(("instruction", "answer"), USABLE)
def test_an_ordinary_answer_can_be_used(instruction: str, answer: str) -> None:
    assert why_unusable(instruction, answer) is None


@pytest.mark.parametrize("answer", ["", SENTENCE])
def test_an_answer_that_a_limit_cut_is_left_out(answer: str) -> None:
    assert why_unusable("Name a river.", answer, has_ended=False) == "cut_off"


@pytest.mark.parametrize(
    ("words", "share"),
    [("", 0), ("a b c", 0), ("a b a b", 0.5), ("a a a", 2 / 3), ("a b c a b d a b", 0.5)],
)
def test_repeated_words_are_those_in_a_sequence_seen_before(words: str, share: float) -> None:
    assert repeated_words(words.split(), length=2) == pytest.approx(share)


def test_the_rules_leave_out_no_more_than_two_of_a_thousand_good_answers() -> None:
    left_out = [
        record.id
        for record in read_records(STARTER)
        if why_unusable(record.prompt, record.document.plain_text) is not None
    ]
    assert len(left_out) <= 2, left_out
