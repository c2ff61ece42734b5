"""What the rivals learn: APAR's leads and details by its rules, points of skeletons; by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from pasta_lm.language.document import parse
from pasta_lm.language.parser import Form
from pasta_lm.tasks import FAMILIES, Task, make
from pasta_lm.tasks.annotators import annotate
from pasta_lm.tasks.rivals import (
    APAR_ANNOTATORS,
    ASKED_PLAINLY,
    SOT_ANNOTATORS,
    apar_published,
    by_points,
    details_of,
    forked_document,
)
from tests.evaluate.rows import CHAIN, FORKS

FORK = '<async topic="fork">'
RIVALS = APAR_ANNOTATORS | SOT_ANNOTATORS


def drawn(text: str) -> str:
    """Return how an answer is forked: details in brackets."""
    form = forked_document(text).annotator_form()
    return form.replace(FORK, "[").replace("</async>", "]")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_annotation_keeps_the_text_and_has_no_sync(family: str) -> None:
    for seed, name in itertools.product(range(6), RIVALS):
        task = make(family, "train", seed)
        document = RIVALS[name](task, 1)
        assert document.plain_text == task.text
        assert document.num_syncs == 0
        assert parse(document.annotator_form(), Form.ANNOTATOR) == document


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


def told(text: str) -> Task:
    """Return a task whose answer is this text."""
    return replace(FORKS, units=(replace(FORKS.units[0], text=text),))


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
def test_the_published_rules_keep_their_own_bounds(text: str, num_forks: int) -> None:
    document = apar_published(told(text))
    assert document.plain_text == text
    assert len(document.blocks) == num_forks


def test_details_of_an_annotation_leave_its_leads_and_its_syncs() -> None:
    text = '<async topic="a">A: one two three.</async>\n<sync/>B, <async topic="c">c.</async>'
    cut = details_of(parse(text, Form.ANNOTATOR)).annotator_form()
    assert cut == f"A:{FORK} one two three.</async>\nB, c."


@pytest.mark.parametrize("family", FAMILIES)
def test_points_are_the_units_with_what_stands_in_front_of_them(family: str) -> None:
    for seed in range(6):
        task = make(family, "train", seed)
        blocks = by_points(task).items
        assert [block.topic for block in blocks] == [unit.topic for unit in task.units]  # type: ignore[union-attr]
        gold = annotate(task, "gold")
        by_gold = SOT_ANNOTATORS["sot_gold"](task, 0)
        is_free = len(gold.blocks) > 1 and not gold.num_syncs
        assert len(by_gold.blocks) == (len(task.units) if is_free else 1)


def test_some_answers_are_learned_whole_and_the_choice_can_be_made_again() -> None:
    tasks = [make("takings", "train", seed) for seed in range(200)]
    whole = [not SOT_ANNOTATORS["sot"](task, 0).blocks for task in tasks]
    assert sum(whole) / len(whole) == pytest.approx(ASKED_PLAINLY, abs=0.13)
    assert whole == [not SOT_ANNOTATORS["sot"](task, 0).blocks for task in tasks]
    (whole_chain,) = SOT_ANNOTATORS["sot_gold"](CHAIN, 0).blocks  # no skeleton has a single point
    assert whole_chain.plain_text == CHAIN.text
