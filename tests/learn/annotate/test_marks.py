"""An answer is cut into numbered units, and marks become blocks without a copy."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pasta_lm.errors import InputError
from pasta_lm.language.document import parse
from pasta_lm.language.parser import Form
from pasta_lm.learn.annotate.filters import Marks, marked, units

LIST = """Two good pets for a small flat:

1. **A cat**: It sleeps most of the day. It needs no walks at all.
2. **A fish**: It asks for clean water and for nothing else.

So a cat suits you better."""

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

BAD = [
    (Marks(((4, 4, "x"), (3, 3, "y"))), "out of order"),
    (Marks(((2, 3, "x"), (3, 4, "y"))), "out of order"),
    (Marks(((0, 0, "x"),)), "not within the 5 units"),
    (Marks(((4, 6, "x"),)), "not within the 5 units"),
    (Marks(((3, 2, "x"),)), "out of order"),
    (Marks(((2, 3, "x"),), (3,)), "inside a block"),
    (Marks(((2, 3, "x"),), (6,)), "not one of the 5 units"),
    (Marks(((2, 3, "x"), (4, 4, "y")), (2,)), "idle_sync"),
    (Marks(((2, 3, "a cat at home"), (4, 4, "y"))), "topic_bounds"),
    (Marks(((1, 5, "x"),)), "no_gain"),
]


@pytest.mark.parametrize(("answer", "lines"), CUT)
def test_an_answer_is_cut_into_sentences_lines_and_paragraphs_of_code(
    answer: str, lines: list[str]
) -> None:
    cut = [
        (f"[{answer[begin:inside]}]" if inside > begin else "") + answer[inside:end]
        for begin, inside, end in units(answer)
    ]
    assert cut == lines


@pytest.mark.parametrize("answer", [LIST, *(answer for answer, _ in CUT)])
def test_units_hold_all_but_white_space_in_order(answer: str) -> None:
    found = units(answer)
    assert all(begin <= inside < end for begin, inside, end in found)
    assert all(one.end <= other.begin for one, other in pairwise(found))
    assert " ".join(answer[one.begin : one.end] for one in found).split() == answer.split()


def test_marked_units_become_blocks_behind_their_labels_with_the_space_inside() -> None:
    document = marked(LIST, Marks(((2, 3, "a cat"), (4, 4, "a fish")), (5,)))
    assert document == parse(
        "Two good pets for a small flat:\n\n"
        '1. **A cat**:<async topic="a cat"> It sleeps most of the day. It needs no walks at all.'
        '</async>\n2. **A fish**:<async topic="a fish"> It asks for clean water and for nothing '
        "else.</async>\n\n<sync/>So a cat suits you better.",
        Form.ANNOTATOR,
    )
    assert document.plain_text == LIST
    assert marked(LIST, Marks()) == parse(LIST)


def test_text_that_looks_like_a_tag_stays_text() -> None:
    answer = (
        "Use <sync/> here and there, then go on.\nUse <async> in each of the other cases.\nEnd."
    )
    document = marked(answer, Marks(((1, 1, "sync"), (2, 2, "async"))))
    assert (document.plain_text, document.num_syncs, len(document.blocks)) == (answer, 0, 2)


@pytest.mark.parametrize(("marks", "message"), BAD)
def test_marks_that_break_a_rule_are_named(marks: Marks, message: str) -> None:
    with pytest.raises(InputError, match=message):
        marked(LIST, marks)


def test_a_block_under_five_words_is_refused() -> None:
    with pytest.raises(InputError, match="block_bounds"):
        marked("- Red is warm.\n- Blue is cold.", Marks(((1, 1, "red"), (2, 2, "blue"))))
