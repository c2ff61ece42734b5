from __future__ import annotations

import pytest

from pasta_lm.errors import PastaSyntaxError
from pasta_lm.language import Block, Document, Promise, Sync, Text, from_events, parse
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
