"""The blocks and syncs of the hand-written rules, expected by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.tests.tasks.reading import LABELLED, annotate, marked, task_set
from pasta_lab.evaluate.structure import fork_counts, structure, true_structure
from pasta_lab.tasks import FAMILIES, Dependence, make, training_families
from pasta_lab.tasks.formats import CHAIN_LABEL, FREE_LABEL
from pasta_lab.tasks.layout import EVERY_LINE, MARKED, label_document, rule_document
from pasta_lm.language.document import parse
from pasta_lm.language.parser import Form

LINES = st.sampled_from(
    ["# A", "```", "- b", "  - c", "1. d: e", "**f** g", "| h |", "i j.", "", " "]
)


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_the_rule_keeps_any_text(text: str) -> None:
    for layouts in (MARKED, EVERY_LINE):
        assert rule_document(text, layouts).plain_text == text


def test_list_items_become_blocks_and_the_conclusion_follows_a_sync() -> None:
    text = (
        "Three tips:\n\n1. Sleep: go to bed at ten.\n2. Light: turn all the lamps off.\n\n"
        "Both are free of charge.\n"
    )
    assert rule_document(text).annotator_form() == (
        'Three tips:\n\n<async topic="Sleep">1. Sleep: go to bed at ten.</async>\n'
        '<async topic="Light">2. Light: turn all the lamps off.</async>\n\n'
        "<sync/>Both are free of charge.\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "One two three four five. Six seven eight nine ten.",
        "- one two three four five",  # alone
        "- a b\n- c d\n- e f",  # too short
        "In all one two three four\n- Overall one two three four\n- a b c d e",
    ],
)
def test_plain_sentences_single_items_and_short_items_stay_sequential(text: str) -> None:
    document = rule_document(text)
    assert (document.blocks, document.num_syncs) == ((), 0)


def test_nothing_after_a_conclusion_is_a_block() -> None:
    text = "- a b c d e\n- f g h i j\nIn summary, all are letters.\n- k l m n o"
    document = rule_document(text)
    assert [block.topic for block in document.blocks] == ["a b c", "f g h"]
    assert document.annotator_form().count("<sync/>In summary") == 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["rule", "rule_lines"])
def test_the_rules_without_the_label_mark_both_sides_of_a_pair_alike(
    family: str, name: str
) -> None:
    for seed in range(10):
        task = make(family, "test", seed)
        document = annotate(task, name)
        blocks, syncs = marked(task, document)
        assert parse(document.annotator_form(), Form.ANNOTATOR) == document
        if task.pair is not None and task.dependence is Dependence.CHAIN:
            partner = make(FAMILIES[family].partner or "", "test", seed)
            assert marked(partner, annotate(partner, name))[0] == blocks
        assert len(syncs) <= 1


# --- the rule that reads the label


def read_by_label(text: str) -> str:
    """Return how the label rule forks an answer: blocks in brackets behind their topics."""
    form = label_document(text).annotator_form()
    return form.replace('<async topic="', "").replace('">', "[").replace("</async>", "]")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{FREE_LABEL}\n1. A: x y.\n2. B: z.", f"{FREE_LABEL}\nA[1. A: x y.]\nB[2. B: z.]"),
        (
            f"{FREE_LABEL} For A: x. It is y. For B: z.",
            f"{FREE_LABEL} For A[For A: x. It is y.] For B[For B: z.]",
        ),
        (f"{FREE_LABEL}\nA: x.", f"{FREE_LABEL}\nA: x."),  # a block alone
        (f"{FREE_LABEL}\nA: x.\n***\nB: y.\n", f"{FREE_LABEL}\nA[A: x.]\n***\nB[B: y.]\n"),
        (FREE_LABEL, FREE_LABEL),
        (f"{CHAIN_LABEL}\n1. A: one two three.\n2. B: four five six.",) * 2,
    ],
)
def test_the_label_decides_whether_items_are_blocks(text: str, expected: str) -> None:
    assert read_by_label(text) == expected


@given(st.lists(LINES, max_size=12).map("\n".join), st.sampled_from([FREE_LABEL, CHAIN_LABEL, ""]))
def test_the_label_rule_keeps_any_text(text: str, label: str) -> None:
    assert label_document(label + text).plain_text == label + text


@pytest.mark.parametrize("family", LABELLED)
def test_the_label_rule_forks_as_gold_from_the_plain_text_alone(family: str) -> None:
    for split in ("train", "dev", "test", "hard"):
        for seed in range(30):
            task = make(family, split, seed)
            true = annotate(task, "gold")
            assert marked(task, annotate(task, "rule_label")) == marked(task, true)
            found = label_document(task.text)
            assert [b.plain_text for b in found.blocks] == [b.plain_text for b in true.blocks]


def test_the_page_has_the_precision_and_recall_of_each_rule() -> None:
    tasks = task_set("dev", 20, training_families())
    page = (Path(__file__).parents[2] / "tasks.md").read_text("utf-8")
    for name in ("rule", "rule_lines", "rule_label", "always_fork", "noisy"):
        cells = []
        for some in (tasks, [task for task in tasks if task.preface]):
            counts = [
                fork_counts(structure(task, annotate(task, name)), true_structure(task))
                for task in some
            ]
            right = sum(one.right for one in counts)
            cells += [right / sum(one.given for one in counts)]
            cells += [right / sum(one.wanted for one in counts)]
        assert f"| `{name}` | {' | '.join(f'{cell:.2f}' for cell in cells)} |" in page
