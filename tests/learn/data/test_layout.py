"""The parts of plain texts, by hand; the answers that baselines learn from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Text
from pasta_lm.language.parser import FORK_TOPIC, Form
from pasta_lm.learn.data.layout import Layout, apar_document, parts, points_of

ITEM, SECTION, BOLD, ROW, LINE = Layout

CASES = [
    ("One sentence. And another one.", [(LINE, "One sentence. And another one.")]),
    ("- a\n- b", [(ITEM, "- a"), (ITEM, "- b")]),
    ("1. a\n   more\n   - inner\n2. b\n", [(ITEM, "1. a\n   more\n   - inner"), (ITEM, "2. b")]),
    ("1) a\n\n2) b\n\nSo.", [(ITEM, "1) a"), (ITEM, "2) b"), (LINE, "So.")]),
    ("First, a.\nSecond, b.", [(ITEM, "First, a."), (ITEM, "Second, b.")]),
    ("First a.", [(LINE, "First a.")]),
    ("12 of them", [(LINE, "12 of them")]),
    ("Intro:\n\n## A\nx\n\ny\n\n### A1\nz\n\n## B\nw", [
        (LINE, "Intro:"), (SECTION, "## A\nx\n\ny\n\n### A1\nz"), (SECTION, "## B\nw"),
    ]),
    ("**A**: x\n__B:__ y\n**not closed", [(BOLD, "**A**: x"), (BOLD, "__B:__ y"),
                                          (LINE, "**not closed")]),
    ("| n | t |\n|---|---|\n| A | x |\n| B | y |", [
        (LINE, "| n | t |\n|---|---|"), (ROW, "| A | x |"), (ROW, "| B | y |"),
    ]),
    ("Run:\n```sh\n# x\n\n- y\n```\n- z", [
        (LINE, "Run:"), (LINE, "```sh\n# x\n\n- y\n```"), (ITEM, "- z"),
    ]),
    ("- a\n  ```\n1. b\n  ```\n- c", [(ITEM, "- a\n  ```\n1. b\n  ```"), (ITEM, "- c")]),
    ("````\n```\n# x\n````\n~~~\n# y", [(LINE, "````\n```\n# x\n````"), (LINE, "~~~\n# y")]),
    ("| A | x |\n| B | y |", [(ROW, "| A | x |"), (ROW, "| B | y |")]),
    ("", []),
    ("  \n ", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_layout_is_read_line_by_line(text: str, expected: list[tuple[Layout, str]]) -> None:
    assert [(part.layout, part.text) for part in parts(text)] == expected


LINES = st.sampled_from(
    ["# A", "```", "- b", "  - c", "1. d: e", "**f** g", "| h |", "i j.", "", " "]
)


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_parts_and_the_space_between_them_are_the_text(text: str) -> None:
    found = parts(text)
    assert "".join(part.before + part.text for part in found) == text.rstrip()
    assert not any(part.before.strip() for part in found)


@pytest.mark.parametrize(
    ("text", "lead"),
    [
        ("1. Dimbra: by bus, a long way.", "Dimbra"),
        ("Second, Step 2: net goes there.", "Step 2"),
        ("**The Blue Room:** it is blue.", "The Blue Room"),
        ("| Wire | stands there |", "Wire"),
        ("## A heading\nand text", "A heading"),
        ("Ada Berg stands for swimming.", "Ada Berg "),
        ("- at 10:30 or so", "at 10:30 or so"),
    ],
)
def test_a_lead_is_a_label_a_cell_a_heading_a_name_or_the_line(text: str, lead: str) -> None:
    assert parts(text)[0].lead == lead


# --- what the baselines learn


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
def test_apars_rules_fork_labelled_items_or_paragraphs(text: str, num_forks: int) -> None:
    document = apar_document(text)
    assert document.plain_text == text
    assert len(document.blocks) == num_forks


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
    items = tuple(Block(topic, None, (Text(inside),)) for topic, inside in points)
    assert points_of(document) == Document(items)
    assert points_of(document).plain_text == document.plain_text
