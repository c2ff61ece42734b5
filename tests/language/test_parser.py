from __future__ import annotations

from copy import copy

import pytest

from pasta_lm.errors import PastaSyntaxError
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


def test_the_annotators_blocks_carry_their_topics() -> None:
    assert feed(Parser(Form.ANNOTATOR), TOPICAL, END) == [AsyncOpen("a"), AsyncClose()]


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
            if lexeme.kind in parser.legal():
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
    assert parser.legal() == frozenset()
    assert parser.close() == []
    with pytest.raises(PastaSyntaxError, match="has ended before this"):
        parser.feed(TEXT)


def test_a_tag_with_problems_is_never_taken() -> None:
    (faulty,) = Lexer().feed("<sync>")
    for form in Form:
        with pytest.raises(PastaSyntaxError, match="there is no tag <sync>"):
            Parser(form).feed(faulty)


def test_a_copy_goes_its_own_way_from_the_middle_of_a_topic() -> None:
    parser = Parser(Form.MAIN)
    feed(parser, OPEN, TEXT)
    twin = copy(parser)
    assert feed(twin, TEXT, CLOSE) == [Promise("tt", 3)]
    assert feed(parser, CLOSE) == [Promise("t", 3)]
