from __future__ import annotations

from copy import copy

import pytest

from pasta_lm.errors import PastaSyntaxError
from pasta_lm.language.check import Diagnostic, check, fix, render
from pasta_lm.language.events import AsyncClose, AsyncOpen, Event, Promise, Sync, Text
from pasta_lm.language.lexer import Lexeme, LexemeKind, Lexer
from pasta_lm.language.parser import TRANSITIONS, Form, Parser, State

TEXT = Lexeme(LexemeKind.TEXT, "t")
OPEN = Lexeme(LexemeKind.PROMISE_OPEN)
CLOSE = Lexeme(LexemeKind.PROMISE_CLOSE, units=3)
ASYNC = Lexeme(LexemeKind.ASYNC_OPEN)
TOPICAL = Lexeme(LexemeKind.ASYNC_OPEN, topic="a")
END = Lexeme(LexemeKind.ASYNC_CLOSE)
SYNC = Lexeme(LexemeKind.SYNC)
PIECES = [TEXT, OPEN, CLOSE, ASYNC, END, SYNC]


def feed(parser: Parser, *lexemes: Lexeme) -> list[Event]:
    return [event for lexeme in lexemes for event in parser.feed(lexeme)]


def test_lexemes_of_token_ids_become_events() -> None:
    parser = Parser(Form.WRITTEN)
    halves = [Lexeme(LexemeKind.TEXT, "to"), Lexeme(LexemeKind.TEXT, "pic")]
    assert feed(parser, TEXT, OPEN, *halves) == [Text("t")]
    assert feed(parser, CLOSE, ASYNC, TEXT, END, SYNC) == [
        Promise("topic", 3),
        AsyncOpen(),
        Text("t"),
        AsyncClose(),
        Sync(),
    ]
    assert parser.close() == []


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("max_depth", [1, 2])
def test_what_the_table_calls_legal_is_what_is_taken(form: Form, max_depth: int) -> None:
    seen = set()
    waiting = [Parser(form, max_depth)]
    while waiting:
        parser = waiting.pop()
        if (parser.state, parser.depth) in seen:
            continue
        seen.add((parser.state, parser.depth))
        for lexeme in PIECES:
            if form is Form.ANNOTATOR and lexeme is ASYNC:
                lexeme = TOPICAL
            twin = copy(parser)
            if lexeme.kind in parser.legal:
                twin.feed(lexeme)
                waiting.append(twin)
                continue
            with pytest.raises(PastaSyntaxError, match="PASTA0"):
                twin.feed(lexeme)
            assert (twin.state, twin.depth) == (parser.state, parser.depth)
    reached = {state for state, _ in seen}
    is_flat = form is Form.BLOCK and max_depth == 1
    assert reached | ({State.TOPIC} if is_flat else set()) >= {
        state for state, _ in TRANSITIONS[form]
    }
    assert max(depth for _, depth in seen) <= max_depth


def test_a_block_ends_once() -> None:
    parser = Parser(Form.BLOCK)
    assert feed(parser, TEXT) == [Text("t")]
    assert copy(parser).close() == [AsyncClose()], "the end of its thread ends it"
    assert feed(parser, END) == [AsyncClose()]
    assert parser.state is State.ENDED
    assert parser.legal == frozenset()
    assert parser.close() == []
    with pytest.raises(PastaSyntaxError, match="has ended before this"):
        parser.feed(TEXT)


def test_a_tag_with_problems_is_never_taken() -> None:
    (faulty,) = Lexer().feed("<sync>")
    for form in Form:
        with pytest.raises(PastaSyntaxError, match="there is no tag <sync>"):
            Parser(form).feed(faulty)


PROMISE = '<promise topic="a" tokens="1"/>'


def codes(text: str, form: str = "written", max_depth: int = 1) -> list[str]:
    return [diagnostic.code for diagnostic in check(text, form, max_depth)]


def test_a_valid_text_has_no_diagnostics_and_is_not_changed() -> None:
    text = f"a & b{PROMISE}<async > c</async>, <d>\n<sync />&amp; <asynchronous> "
    assert check(text) == []
    assert fix(text) == text


def test_a_diagnostic_knows_its_place_in_lines_and_in_characters() -> None:
    text = "one\r\n\u00fcber </async> x"
    assert check(text) == [
        Diagnostic(code="PASTA017", severity="error", line=2, column=6, offset=10, length=8,
                   message="there is no open block to close here", hint="remove this tag")
    ]  # fmt: skip


def test_all_problems_of_one_tag_are_reported_each_at_its_own_place() -> None:
    text = '<promise topic="a b c d" tokens="x" topic="e" z="1"/>'
    found = {fault.code: text[fault.offset :][: fault.length] for fault in check(text, "main")}
    assert found == {
        "PASTA010": 'topic="a b c d"',
        "PASTA008": 'tokens="x"',
        "PASTA007": 'topic="e"',
        "PASTA005": 'z="1"',
    }


def test_one_mistake_is_one_fault() -> None:
    assert codes("<promise topic='a'/><async>b</async>") == ["PASTA006"]
    assert codes("<promise topic='a' tokens='1'><async>b</async>") == ["PASTA004"]
    assert codes("<async topic='a b c d'>b</async>", "annotator") == ["PASTA010"]


def test_every_fault_is_reported_and_in_the_order_of_the_text() -> None:
    text = f"</async>{PROMISE}<async>b<sync/>{PROMISE}<sync><promise"
    assert codes(text) == [
        *("PASTA017", "PASTA016", "PASTA018", "PASTA013", "PASTA015"),
        *("PASTA004", "PASTA018", "PASTA001"),
    ]


def test_more_depth_is_a_setting() -> None:
    text = f"{PROMISE}<async>b{PROMISE}<async>c</async></async>"
    assert codes(text) == ["PASTA015"]
    assert codes(text, max_depth=2) == []
    assert fix(text) == f"{PROMISE}<async>bc</async>"
    assert fix(text, max_depth=2) == text


def test_blocks_nested_without_end_are_no_burden() -> None:
    text = "<async topic='a'>" * 5_000
    assert set(codes(text, "annotator")) == {"PASTA015", "PASTA016"}
    assert fix(text, "annotator") == "<async topic='a'></async>"


def test_the_inside_of_a_block_cannot_be_checked() -> None:
    with pytest.raises(ValueError, match="decoded, not stored"):
        check("a", Form.BLOCK)


def test_a_repair_leaves_all_other_tags_as_they_were_spelled() -> None:
    text = "<promise tokens=1 topic='a' /><async >b</async\n> <sync /></async>"
    assert fix(text) == text.removesuffix("</async>")


def caret(text: str) -> list[str]:
    (diagnostic,) = check(text)
    return [line[4:] for line in render(diagnostic, text).splitlines()[1:3]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("</async>", ["</async>", "^^^^^^^^"]),
        ("a\n\tb\x07</async>\nc", [" b </async>", "   ^^^^^^^^"]),
        ("x" * 40 + "</async>", ["..." + "x" * 30 + "</async>", " " * 33 + "^" * 8]),
        ("</async>" + "x" * 40, ["</async>" + "x" * 37 + "...", "^" * 8]),
        ("</async>" + "x" * 37, ["</async>" + "x" * 37, "^" * 8]),
        ("a </async\n > b", ["a </async", "  ^^^^^^^"]),
    ],
)
def test_carets_stand_under_the_tag_in_an_excerpt_of_its_line(
    text: str, expected: list[str]
) -> None:
    assert caret(text) == expected
