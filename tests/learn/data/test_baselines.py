"""APAR's rules for training answers, with the forks expected by hand, and answers by points."""

from __future__ import annotations

import pytest

from pasta_lm.language.document import Block, parse
from pasta_lm.language.events import Text
from pasta_lm.language.parser import FORK_TOPIC, Form
from pasta_lm.learn.data.baselines import (
    forked_document,
    points_document,
    points_of,
    published_document,
)

FORK = '<async topic="fork">'


def drawn(text: str) -> str:
    """Return how an answer is forked: details in brackets."""
    form = forked_document(text).annotator_form()
    return form.replace(FORK, "[").replace("</async>", "]")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Tips:\n1. Sleep: go to bed at ten.\n2. Light: off, all lamps.\nThat is all.",
            "Tips:\n1. Sleep:[ go to bed at ten.]\n2. Light:[ off, all lamps.]\nThat is all.",
        ),
        (
            "**A**: one two three.\n**B** four five six.",
            "**A**:[ one two three.]\n**B**[ four five six.]",
        ),
        ("## A\nx y z and so on\n\n## B\nmore of the same",
         "## A[\nx y z and so on]\n\n## B[\nmore of the same]"),
        ("| A | one two three |\n| B | four five six |",
         "| A |[ one two three |]\n| B |[ four five six |]"),
        ("Ada is here. She came by train.\nBob is not. He has no ticket.",
         "Ada is here.[ She came by train.]\nBob is not.[ He has no ticket.]"),
        # Nothing to fork: one line, short details, one fork only, a conclusion.
        ("Ada is here. She came by train.", "Ada is here. She came by train."),
        ("- a: b\n- c: d", "- a: b\n- c: d"),
        ("Ada is here. She came by train.\nBob.", "Ada is here. She came by train.\nBob."),
        ("A: one two three.\nB: four five six.\nOverall: seven eight nine.",
         "A:[ one two three.]\nB:[ four five six.]\nOverall: seven eight nine."),
    ],
)  # fmt: skip
def test_the_lead_stays_in_the_parent_and_the_rest_is_forked(text: str, expected: str) -> None:
    assert drawn(text) == expected


@pytest.mark.parametrize(
    ("text", "num_forks"),
    [
        ("1. A: one two three\n2. B: one two three\n3. C: one two three", 3),
        ("1. A: one two three\n2. B: one two three", 0),  # two are too few
        ("1) A: one two three\n2) B: one two three\n3) C: one two three", 0),  # other marks
        ("A b. One two three.\n\nC d. One two three.\n\nE f. One two three.", 3),
        ("A b. One two three.\nC d. One two three.\nE f. One two three.", 0),  # lines
        ("1. A: 1 + 1 = 2, and so\n2. B: one two three\n3. C: one two three", 0),  # mathematics
    ],
)
def test_the_published_rules_have_their_own_bounds(text: str, num_forks: int) -> None:
    document = published_document(text)
    assert document.plain_text == text
    assert len(document.blocks) == num_forks


def test_points_are_blocks_with_their_topics() -> None:
    document = points_document([("a", "A is."), ("b", "\nB is.")])
    blocks = (Block("a", None, (Text("A is."),)), Block("b", None, (Text("\nB is."),)))
    assert document.items == blocks


@pytest.mark.parametrize(
    ("text", "points"),
    [
        (
            'See: <async topic="a">A.</async>, <async topic="b">B.</async> Done.',
            [("a", "See: A."), ("b", ", B. Done.")],
        ),
        ('<async topic="a">A.</async><async topic="b">B.</async>', [("a", "A."), ("b", "B.")]),
        # What waits for another, or is alone, is a single point: it has no skeleton.
        ('<async topic="a">A.</async><sync/><async topic="b">B.</async>', [(FORK_TOPIC, "A.B.")]),
        ('So <async topic="a">A.</async>', [(FORK_TOPIC, "So A.")]),
        ("So it is.", [(FORK_TOPIC, "So it is.")]),
    ],
)
def test_the_points_of_an_answer_are_its_blocks_and_the_text_in_front(
    text: str, points: list[tuple[str, str]]
) -> None:
    document = parse(text, Form.ANNOTATOR)
    assert points_of(document) == points_document(points)
    assert points_of(document).plain_text == document.plain_text
