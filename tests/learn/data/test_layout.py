"""The parts of plain texts, with their layouts and topics expected by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.learn.data.layout import Layout, parts, rest

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
    assert "".join(part.before + part.text for part in found) + rest(text, found) == text
    assert not any(part.before.strip() for part in found)


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("1. Dimbra: by bus, a long way.", "Dimbra"),
        ("Second, Step 2: net goes there.", "Step 2"),
        ("**The Blue Room:** it is blue.", "The Blue Room"),
        ("| Wire | stands there |", "Wire"),
        ("## A very long heading indeed", "A very long"),
        ("- wash your <b>hands</b> often", "wash your b"),
        ("Ada Berg stands for swimming.", "Ada Berg"),
        ("- in the morning, at 10:30 or so", "in the morning"),
        ('"Quoted" words come first here.', "Quoted words come"),
        ("***", ""),
    ],
)
def test_a_topic_is_a_few_words_of_the_lead(text: str, topic: str) -> None:
    assert parts(text)[0].topic == topic
