from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.errors import PastaSyntaxError
from pasta_lm.language import (
    Block,
    Document,
    Item,
    Promise,
    Sync,
    Text,
    check,
    fix,
    from_events,
    parse,
)
from pasta_lm.language.document import parse_program
from pasta_lm.language.events import AsyncClose, AsyncOpen
from pasta_lm.language.parser import Form

WRITTEN = 'Hi <promise topic="a" tokens="1"/><async>one</async>, <sync/>then &lt;sync/>.'
DOCUMENT = Document(
    (Text("Hi "), Block("a", 1, (Text("one"),)), Text(", "), Sync(), Text("then <sync/>."))
)


def test_an_answer_has_several_spellings() -> None:
    assert parse(WRITTEN) == DOCUMENT
    assert DOCUMENT.written() == WRITTEN
    assert DOCUMENT.main_form() == 'Hi <promise topic="a" tokens="1"/>, <sync/>then &lt;sync/>.'
    assert DOCUMENT.annotator_form() == 'Hi <async topic="a">one</async>, <sync/>then &lt;sync/>.'
    assert DOCUMENT.plain_text == "Hi one, then <sync/>."
    assert DOCUMENT.without_tags() == Document((Text("Hi one, then <sync/>."),))


def test_blocks_are_listed_in_the_order_in_which_they_open() -> None:
    inner = Block("inner", 1, (Text("i"),))
    outer = Block("outer", 2, (Text("o"), inner))
    document = Document((outer, Sync(), Block("last", 1)))
    assert [block.topic for block in document.blocks] == ["outer", "inner", "last"]
    assert document.num_syncs == 1
    assert outer.plain_text == "oi"


def test_lengths_are_counted_from_the_inside_with_the_blocks_own_tags() -> None:
    counted = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    inner = Block("i", None, (Text("x" * 30 + "<sync/>"),))
    document = Document((Block("o", None, (Text("y"), inner)),)).with_lengths(count)
    assert [block.units for block in document.blocks] == [9, 4]
    assert counted[0] == "x" * 30 + "&lt;sync/>"
    assert counted[1] == 'y<promise topic="i" tokens="4"/><async>' + counted[0] + "</async>"


def test_a_block_without_a_length_has_no_written_form() -> None:
    document = parse('<async topic="a">x</async>', "annotator")
    assert document.blocks[0].units is None
    for write in (document.written, document.main_form):
        with pytest.raises(ValueError, match="'a' has no length: call with_lengths first"):
            write()


def test_adjacent_text_is_one_item_and_empty_text_none() -> None:
    parts = (Text("a"), Text(""), Text("b"), Sync(), Text(""))
    assert Document(parts) == Document((Text("ab"), Sync()))
    assert Block("t", 1, parts[:3]).items == (Text("ab"),)


def test_the_inside_of_a_block_reads_as_a_document_of_its_own() -> None:
    assert parse("one</async>", Form.BLOCK) == parse("one", Form.BLOCK)
    assert parse("one", Form.BLOCK) == Document((Text("one"),))
    with pytest.raises(PastaSyntaxError, match="a sync inside a block"):
        parse("one<sync/>", Form.BLOCK)


def test_events_that_stop_early_still_make_a_document() -> None:
    events = [Promise("a", 2), AsyncOpen(), Text("one"), AsyncClose(), AsyncOpen("b"), Text("tw")]
    assert from_events(events) == Document(
        (Block("a", 2, (Text("one"),)), Block("b", None, (Text("tw"),)))
    )


def test_a_fault_is_shown_where_it_stands() -> None:
    text = "one\ntwo\nthree tips.<sync/>Now </async>, <sync>"
    with pytest.raises(PastaSyntaxError) as caught:
        parse(text)
    assert str(caught.value) == (
        "line 3, column 23: there is no open block to close here (PASTA017)\n"
        "    three tips.<sync/>Now </async>, <sync>\n"
        "                          ^^^^^^^^\n"
        "    hint: remove this tag"
    )


FORKED = '1.<async topic="fork"> one &lt;sync/></async>\n2.<async topic="fork"> two</async>'


@pytest.mark.parametrize(
    "document", [DOCUMENT, DOCUMENT.without_tags(), parse(FORKED, "annotator"), Document()]
)
def test_a_program_is_read_as_it_was_written_with_lengths_or_without(document: Document) -> None:
    assert parse_program(document.program) == document
    has_lengths = all(block.units is not None for block in document.blocks)
    assert parse(document.program, "written" if has_lengths else "annotator") == document


def test_what_is_no_program_is_refused_as_the_written_form_would() -> None:
    broken = 'Hi <promise topic="a" tokens="1"/>, and no block.'
    with pytest.raises(PastaSyntaxError) as caught:
        parse_program(broken)
    with pytest.raises(PastaSyntaxError) as expected:
        parse(broken)
    assert caught.value.message == expected.value.message


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
