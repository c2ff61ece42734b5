"""Spaces before a tag move to the text after it, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.language import Block, Document, Item, Sync, Text, check, fix, parse
from pasta_lm.language.tags import spaces_after_tags

A, B = '<async topic="a">', "</async>"
CASES = {
    "before a block": (f"Title: {A}text{B}", f"Title:{A} text{B}"),
    "after a list's mark": (f"\n- {A}text{B}", f"\n-{A} text{B}"),
    "indentation": (f"\n    {A}text{B}", f"\n{A}    text{B}"),
    "at the beginning of the answer": (f" {A}text{B}", f"{A} text{B}"),
    "alone between blocks": (f"{A}one{B} {A}two{B}", f"{A}one{B}{A} two{B}"),
    "before a sync and a block": (f"{A}1{B} <sync/>{A}2{B}", f"{A}1{B}<sync/>{A} 2{B}"),
    "on both sides of a sync": (f"{A}1{B} <sync/> {A}2{B}", f"{A}1{B}<sync/>{A}  2{B}"),
    "at the end of a block": (f"{A}one {B}two", f"{A}one{B} two"),
    "before a line break in a block": (f"x {A}\ntext{B}", f"x{A} \ntext{B}"),
    "before an empty block": (f"x {A}{B}y", f"x{A}{B} y"),
    "a blank block": (f"x{A} {B}y", f"x{A}{B} y"),
    "inside a nested block": (f"{A}x {A}y{B}z{B}", f"{A}x{A} y{B}z{B}"),
}
STAY = {
    "a line break": f"Title:\n{A}text{B}",
    "a tab": f"Title:\t{A}text{B}",
    "another kind of space": f"Title:\u00a0{A}text{B}",
    "spaces before a line break": f"Title: \n{A}text{B}",
    "spaces after a tag": f"Title:{A} text{B} more",
    "the end of the answer": f"{A}text {B}<sync/> ",
    "nothing but spaces": f" {A} {B} ",
    "no tags": "Title: text ",
    "nothing": "",
}


def read(annotated: str) -> Document:
    return parse(annotated, "annotator", max_depth=2)


@pytest.mark.parametrize(("lone", "moved"), CASES.values(), ids=CASES)
def test_spaces_before_a_tag_belong_to_the_text_after_it(lone: str, moved: str) -> None:
    assert read(lone).with_spaces_after_tags().annotator_form() == moved
    assert fix(lone, "annotator", max_depth=2) == moved
    assert "PASTA104" in [found.code for found in check(lone, "annotator", max_depth=2)]


@pytest.mark.parametrize("text", STAY.values(), ids=STAY)
def test_everything_else_stays(text: str) -> None:
    assert read(text).with_spaces_after_tags() == read(text)
    assert fix(text, "annotator") == text
    assert "PASTA104" not in [found.code for found in check(text, "annotator")]


def test_main_form_keeps_its_spaces_because_the_text_after_them_may_be_in_a_block() -> None:
    text = 'A <promise topic="a" tokens="1"/> b <sync/>c'
    assert check(text, "main") == []
    assert fix(text, "main") == text


def test_a_finding_marks_the_spaces() -> None:
    text = f"x\nTitle:  {A}text {B}more"
    places = [(one.line, one.column, one.length) for one in check(text, "annotator")]
    assert places == [(2, 7, 2), (2, 30, 1)]


def test_a_repaired_text_has_no_space_before_a_tag_either() -> None:
    text = f"Two </async> {A}one{B} {A}two"
    assert fix(text, "annotator") == f"Two{A}  one{B}{A} two{B}"


def test_many_lone_spaces_are_no_burden() -> None:
    text = f"{A}x{B}" + " <sync/>" * 20_000 + "y"
    assert fix(text, "annotator") == f"{A}x{B}" + "<sync/>" * 20_000 + " " * 20_000 + "y"


texts = st.text(alphabet="  \n\tax<\u00a0", max_size=6)
leaves = st.builds(Text, texts) | st.just(Sync())
inside = st.lists(
    st.builds(Text, texts)
    | st.builds(Block, st.just("b"), st.just(1), st.builds(Text, texts).map(lambda one: (one,))),
    max_size=3,
).map(tuple)
blocks = st.builds(Block, st.just("a"), st.none() | st.just(2), inside)
documents = st.lists(leaves | blocks, max_size=8).map(lambda items: Document(tuple(items)))


def stretches(items: tuple[Item, ...]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Text):
            yield item.text
        elif isinstance(item, Block):
            yield from stretches(item.items)


@given(documents)
def test_the_plain_text_and_the_tags_are_the_same_and_no_text_ends_in_a_space(
    document: Document,
) -> None:
    moved = document.with_spaces_after_tags()
    assert moved.plain_text == document.plain_text
    assert moved.with_spaces_after_tags() == moved
    assert [one.topic for one in moved.blocks] == [one.topic for one in document.blocks]
    assert moved.num_syncs == document.num_syncs
    rest = document.plain_text
    for text in stretches(moved.items):
        rest = rest.removeprefix(text)
        assert not text.endswith(" ") or not rest.strip(" ")


@given(st.lists(texts, max_size=8))
def test_texts_are_cut_elsewhere_and_not_changed(found: list[str]) -> None:
    moved = list(spaces_after_tags(found))
    assert "".join(moved) == "".join(found)
    assert len(moved) == len(found)
    assert list(spaces_after_tags(moved)) == moved
