"""The Markdown rule: which parts of an answer are blocks, by hand; its text never changes."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.language.document import Document
from pasta_lm.learn.annotate.filters import examine
from pasta_lm.learn.annotate.layout_rule import markdown_rule, topic, units
from pasta_lm.learn.data.annotated import read_records

MORE = " and then some more words so that there is something to gain from a thread of its own"
ITEMS = (
    f"- **Sleep:** go to bed at ten{MORE}.\n- **Light:** turn the lamps off{MORE}.\n"
    f"- **Noise:** wear soft earplugs{MORE}."
)
STEPS = (
    "1. Soak the stone in water for ten minutes.\n2. Lay the blade flat at twenty degrees.\n"
    "3. Draw the edge over it five times."
)
LEAVES = (
    f"Oak is dense and burns slowly, with a long-lasting bed of embers{MORE}.\n\n"
    f"Ash dries fast, splits cleanly and gives a steady flame{MORE}."
)
SUMS = (
    f"- First shelf: 27 times 480 grams make 12,960 grams{MORE}.\n"
    f"- Second shelf: 41 times 350 grams make 14,350 grams{MORE}."
)
LETTER = (
    "Dear Ms Novak,\n\nThank you for the talk this morning and for all the time you took.\n\n"
    "Thank you as well for the coffee, which was the best that I ever had."
)
BODY = "    a = a + 1\n    b = b + 2\n    c = a + b + 3\n    return a * b * c\n"
CODE = f"```\ndef first(a):\n{BODY}```\n\n```\ndef second(a):\n{BODY}```"
PARTS = f"**One:** a b c{MORE}.\n\n**Two:** g h i{MORE}."
PETS = f"They sleep a lot each day{MORE}.\n\n{{}}Dogs{{}}\n\nThey run a lot each day{MORE}."

LINES = st.sampled_from(
    ["# A", "```", f"- b c{MORE}", "  - c", f"1. d: e{MORE}", "**f** g", "| h | i |", "**J**"]
    + [f"Ash is a tree, and a fine one{MORE}.", "So all of it is <sync/> here.", "", " "]
)


# An answer, and its units with markers and labels in brackets.
CUT = [
    ("One. Two! Three?", ["One.", "Two!", "Three?"]),
    ("Dr. J. Smith paid 3.50, e.g. He left.", ["Dr. J. Smith paid 3.50, e.g. He left."]),
    ('She said "Go." Then she left.', ['She said "Go."', "Then she left."]),
    ("- A dog barks.\n- A cat meows.", ["[- ]A dog barks.", "[- ]A cat meows."]),
    ("1. **Cell wall:** stiff.", ["[1. **Cell wall:** ]stiff."]),
    ("2) **Rent** - high", ["[2) **Rent** - ]high"]),
    ("Florida: warm and flat", ["[Florida: ]warm and flat"]),
    ("* `add`: sums up", ["[* `add`: ]sums up"]),
    ("**Week 1: Basics**", ["**Week 1: Basics**"]),
    ('"Flight: A History"', ['"Flight: A History"']),
    ("## Heading", ["[## ]Heading"]),
    ("1. ", ["1."]),
    ("It is 10:30 now", ["It is 10:30 now"]),
    (
        "```py\na = 1\nb = 2\n\nc = 3\n```\nDone.",
        ["```py", "a = 1\nb = 2", "c = 3", "```", "Done."],
    ),
    ("```\nno end", ["```", "no end"]),
    (" \n\n", []),
    ("", []),
]


def topics(prompt: str, text: str) -> list[str]:
    return [block.topic for block in markdown_rule(prompt, text).blocks]


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("Tips for sleep?", f"Three:\n\n{ITEMS}", ["Sleep", "Light", "Noise"]),
        ("How do I sharpen a knife?", STEPS, []),
        ("Five tips for blades?", STEPS.replace("Draw", "Then draw"), []),  # items are too short
        ("How tall?", f"1. **Day 1:** walk ten{MORE}.\n2. **Day 2:** walk back{MORE}.", []),
        ("oak or ash for the stove?", LEAVES, ["Oak", "Ash"]),
        ("What burns well?", LEAVES, []),  # their names are not in the question
        ("Write to Ms Novak", LETTER, []),
        ("Two functions", CODE, ["def first(a", "def second(a"]),
        ("Two", CODE.replace("```\n\n", "```\n\nNow call it once more:\n\n"), []),
        ("?", "**Cats**\n\n" + PETS.format("**", "**"), ["Cats", "Dogs"]),
        ("?", "# Cats\n\n" + PETS.format("# ", ""), ["Cats", "Dogs"]),
        ("One?", PARTS + "\n\n**Verdict:** m n o p q r.", ["One", "Two"]),  # what concludes is none
        ("?", "- a b\n- c d\n- e f", []),  # blocks have five words or more
        ("?", "", []),
    ],
)  # fmt: skip
def test_parts_that_stand_apart_are_blocks_unless_they_look_like_steps(
    prompt: str, text: str, expected: list[str]
) -> None:
    assert topics(prompt, text) == expected


@pytest.mark.parametrize(
    ("file", "sha256_start"),
    [("starter/starter", "e53a2847ccfdac67"), ("own_answers/own_answers", "20cfc16139a872c1")],
)
def test_the_annotation_of_a_corpus_never_changes(file: str, sha256_start: str) -> None:
    records = read_records(Path(__file__).parents[3] / "corpora" / f"{file}.jsonl")
    answers = ((record.prompt, record.document.plain_text) for record in records)
    programs = "".join(markdown_rule(*answer).program for answer in answers)
    assert sha256(programs.encode()).hexdigest().startswith(sha256_start)


def test_blocks_begin_behind_markers_and_labels() -> None:
    blocks = markdown_rule("Tips?", ITEMS).blocks
    assert [one.plain_text[:7] for one in blocks] == [" go to ", " turn t", " wear s"]


@pytest.mark.parametrize(
    ("prompt", "closing", "has_sync"),
    [
        (
            "Which shelf carries more, and how much do both?",
            "The second carries more, by 1,390 grams. Together: 12,960 + 14,350 = 27,310 grams.",
            True,
        ),
        ("Two shelves?", "Remember to dust them now and then.", False),
        ("Two shelves?", "Good luck!", False),
        ("Two shelves?", "", False),
    ],
)
def test_a_sync_stands_before_a_closing_text_that_needs_the_blocks(
    prompt: str, closing: str, has_sync: bool
) -> None:
    document = markdown_rule(prompt, f"{SUMS}\n\n{closing}".rstrip())
    assert len(document.blocks) == 2
    assert document.num_syncs == has_sync


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_the_rule_keeps_any_text_and_passes_the_filters(text: str) -> None:
    document = markdown_rule("Ash or oak?", text)
    assert document.plain_text == text
    assert isinstance(examine(document.annotator_form(), text), Document)


@pytest.mark.parametrize(
    ("lead", "expected"),
    [
        ("The cell wall of plants", "cell wall of"),
        ("**Why?**", "Why"),
        ("???", "part"),
        ("a" * 90, "a" * 64),
    ],
)
def test_a_topic_has_at_most_three_words(lead: str, expected: str) -> None:
    assert topic(lead) == expected


@pytest.mark.parametrize(("answer", "lines"), CUT)
def test_an_answer_is_cut_into_sentences_lines_and_paragraphs_of_code(
    answer: str, lines: list[str]
) -> None:
    cut = [
        (f"[{answer[begin:inside]}]" if inside > begin else "") + answer[inside:end]
        for begin, inside, end in units(answer)
    ]
    assert cut == lines


@pytest.mark.parametrize("answer", [ITEMS, SUMS, *(answer for answer, _ in CUT)])
def test_units_hold_all_but_white_space_in_order(answer: str) -> None:
    found = units(answer)
    assert all(begin <= inside < end for begin, inside, end in found)
    assert all(one.end <= other.begin for one, other in pairwise(found))
    assert " ".join(answer[one.begin : one.end] for one in found).split() == answer.split()
