from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from pasta_lm.language import lexer as lexer_module
from pasta_lm.language import tags
from pasta_lm.language.lexer import Lexeme, LexemeKind, Lexer
from tests.language import laws

OPEN, CLOSE = LexemeKind.PROMISE_OPEN, LexemeKind.PROMISE_CLOSE
ASYNC, END, SYNC = LexemeKind.ASYNC_OPEN, LexemeKind.ASYNC_CLOSE, LexemeKind.SYNC
TEXT, FAULT = LexemeKind.TEXT, LexemeKind.FAULT

LENIENT_PROMISES = [
    '<promise topic="a b" tokens="2"/>',
    '<promise topic="a b" tokens=2/>',
    '<promise topic="a b" tokens=2 />',
    "<promise topic='a b' tokens='2'/>",
    '<promise tokens="2" topic="a b"/>',
    '<promise\n  topic = "a b"\r\n\ttokens = "02"\n/>',
]
TEXTS = [
    *("<asynchronous>", "<promised>", "<syncs/>", "<async_>", "<async\u00e9>", "< async>"),
    *("</ async>", "<ASYNC>", "a < b > c & d; <br/> &lt; &amp; <<< &&", "<asyn", "</", "<"),
    *("&amp;amp", "&lt;asynchronous>"),
]
FAULTY = [
    ("<promise>", ["PASTA004", "PASTA006"]),
    ('<promise topic="a"/>', ["PASTA006"]),
    ('<promise topic="a" tokens="1">', ["PASTA004"]),
    ('<promise topic="a" tokens="1" topic="b"/>', ["PASTA007"]),
    ('<promise topic="a" tokens="1" Topic="b"/>', ["PASTA005"]),
    ('<promise topic="a"tokens="1"/>', ["PASTA003"]),
    ("<promise topic tokens/>", ["PASTA003"]),
    ("<async-foo>", ["PASTA003"]),
    ("<async/>", ["PASTA004"]),
    ("</async x='1'>", ["PASTA005"]),
    ("<sync>", ["PASTA004"]),
    ("</promise>", ["PASTA004"]),
    ("<sync wait='all'/>", ["PASTA005"]),
    ('<async topic=" ">', ["PASTA009"]),
    ("<async topic='a b c d'>", ["PASTA010"]),
    (f"<async topic={'a' * 65}>", ["PASTA011"]),
    (f"<async topic='{'a ' * 40}'>", ["PASTA010", "PASTA011"]),
    ('<promise topic="x', ["PASTA001"]),
    ('<promise topic="x>', ["PASTA001"]),
    ("<async", ["PASTA001"]),
]
LENGTHS = ["", "0", "00", "-1", "+1", " 1", "1 ", "1.0", "1e3", "0x1", "\u0663", "\u00b2", "1_0"]


def kinds(text: str) -> list[LexemeKind]:
    return [lexeme.kind for lexeme in laws.lex([text])]


def codes(text: str) -> list[str]:
    (lexeme,) = laws.lex([text])
    return [problem.fault.code for problem in lexeme.problems]


@pytest.mark.parametrize("source", LENIENT_PROMISES)
def test_reading_is_lenient_where_the_figures_of_the_paper_are(source: str) -> None:
    first, topic, last = laws.lex([source])
    assert (first.kind, first.text) == (OPEN, source)
    assert (topic.kind, topic.text) == (TEXT, "a b")
    assert (last.kind, last.units) == (CLOSE, 2)


def test_the_other_tags_may_hold_white_space_before_their_end() -> None:
    assert kinds("<async >x</async\n><sync /><sync\t/>") == [ASYNC, TEXT, END, SYNC, SYNC]


def test_the_annotator_gives_a_block_its_topic() -> None:
    (lexeme,) = laws.lex(["<async topic='R&amp;D <b>'>"])
    assert (lexeme.kind, lexeme.topic) == (ASYNC, "R&D <b>")


@pytest.mark.parametrize("text", TEXTS)
def test_what_only_resembles_a_tag_is_text(text: str) -> None:
    laws.assert_cuts_change_nothing(text)
    assert laws.lex([text]) == [Lexeme(TEXT, text, start=0, end=len(text))]


@pytest.mark.parametrize(("source", "expected"), FAULTY)
def test_a_tag_that_is_spelled_wrongly_carries_all_its_problems(
    source: str, expected: list[str]
) -> None:
    laws.assert_cuts_change_nothing(source)
    assert codes(source) == expected


@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_is_a_whole_number_of_at_least_one_in_ascii_digits(length: str) -> None:
    assert codes(f'<promise topic="a" tokens="{length}"/>') == ["PASTA008"]


def test_a_tag_that_is_broken_off_ends_where_the_next_begins() -> None:
    first, second = laws.lex(['<promise topic="a <async>'])
    assert (first.kind, first.text) == (FAULT, '<promise topic="a ')
    assert (second.kind, second.start) == (ASYNC, 18)


def test_a_quote_that_stays_open_does_not_swallow_the_text_after_the_tag() -> None:
    faulty, text = laws.lex(['<promise topic="a tokens="2"/> and on'])
    assert (faulty.kind, faulty.text) == (FAULT, '<promise topic="a tokens="2"/>')
    assert text.text == " and on"


@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_a_tag_has_a_longest_length(excess: int) -> None:
    padding = " " * (tags.MAX_TAG_CHARACTERS + excess - len("<sync/>"))
    source = f"<sync{padding}/>"
    laws.assert_cuts_change_nothing(source, (1, 100))
    lexemes = laws.lex([source])
    assert lexemes[0].kind is (FAULT if excess > 0 else SYNC)
    assert len(lexemes[0].text) <= tags.MAX_TAG_CHARACTERS


def test_lexemes_know_where_they_stand_whatever_the_pieces() -> None:
    text = "a &lt;sync/> <sync/>&amp;amp;lt;async"
    for size in (1, 5, 100):
        first, sync, last = laws.lex(laws.cut(text, size))
        assert text[first.start : first.end] == "a &lt;sync/> "
        assert text[sync.start : sync.end] == "<sync/>"
        assert (last.start, last.end, last.text) == (20, len(text), "&amp;lt;async")


def test_text_is_held_back_only_while_it_may_become_a_tag_or_an_entity() -> None:
    lexer = Lexer()
    passed = ["".join(lexeme.text for lexeme in lexer.feed(piece)) for piece in "a<b&c<as<async y"]
    assert passed == ["a", "", "<b", "", "&c", "", "", "", "<as", *[""] * 7]
    assert lexer.close()[0].kind is FAULT


class Counted:
    """A pattern that counts the characters that its searches pass over."""

    total = 0

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def search(self, text: str, start: int = 0, end: int | None = None) -> re.Match[str] | None:
        end = len(text) if end is None else min(end, len(text))
        return self._count(self.pattern.search(text, start, end), start, end)

    def match(self, text: str, start: int) -> re.Match[str] | None:
        match = self.pattern.match(text, start)
        return self._count(match, start, start + len("</promise>"))

    def _count(self, match: re.Match[str] | None, start: int, end: int) -> re.Match[str] | None:
        Counted.total += (match.end() if match else end) - start + 1
        return match


@pytest.fixture
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TAG_START", "TAG_START_AT_END", "UNDECIDED", "UNDECIDED_TAG"):
        monkeypatch.setattr(tags, name, Counted(getattr(tags, name)))
    stops = {quote: Counted(stop) for quote, stop in lexer_module._STOPS.items()}
    monkeypatch.setattr(lexer_module, "_STOPS", stops)
    yield
    Counted.total = 0


HARD = {
    "brackets": "<",
    "an endless tag": '<promise topic="' + "a" * 50_000,
    "broken tags": '<promise topic="',
    "an endless entity": "&" + "amp;" * 12_500,
    "ampersands": "&",
    "half entities": "&amp;lt;asyn",
    "open quotes": "<async ' >",
    "syncs": "<sync/>",
    "half names": "</promis",
    "text": "some words and then &lt;async> <promise topic='a' tokens=2/><async>x</async> ",
}


@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize("size", [1, 100, 100_000])
@pytest.mark.parametrize("unit", HARD.values(), ids=HARD.keys())
def test_the_work_is_linear_in_the_text_whatever_the_cuts(unit: str, size: int) -> None:
    text = (unit * (30_000 // len(unit) + 1))[:50_000]
    lexer = Lexer()
    longest = 0
    Counted.total = 0
    for piece in laws.cut(text, size):
        lexer.feed(piece)
        longest = max(longest, len(lexer._buffer))
    lexer.close()
    assert Counted.total <= 20 * len(text)
    assert longest <= tags.MAX_TAG_CHARACTERS + len("</promise>")


ESCAPED = [
    ("a < b & c", "a < b & c"),
    ("<async>", "&lt;async>"),
    ("<sync/>", "&lt;sync/>"),
    ("<promise", "&lt;promise"),
    ("<async-foo", "&lt;async-foo"),
    ("<asynchronous>", "<asynchronous>"),
    ("<Async>", "<Async>"),
    ("< async>", "< async>"),
    ("&amp;amp;lt;sync", "&amp;amp;amp;lt;sync"),
    ("&lt;asynchronous", "&lt;asynchronous"),
    ("<<async", "<&lt;async"),
    ("&<sync/>", "&&lt;sync/>"),
]


@pytest.mark.parametrize(("text", "written"), ESCAPED)
def test_text_is_escaped_only_before_the_name_of_a_tag(text: str, written: str) -> None:
    assert tags.escape(text) == written
    assert tags.unescape(written) == text


@pytest.mark.parametrize(
    ("topic", "written"),
    [('say "hi"', "say &quot;hi&quot;"), ("R&D", "R&amp;D"), ("<b>", "<b>"), ("<sync", "&lt;sync")],
)
def test_a_topic_is_escaped_so_that_it_can_stand_in_quotes(topic: str, written: str) -> None:
    assert tags.escape_topic(topic) == written
    assert tags.unescape_topic(written) == topic


@pytest.mark.parametrize(
    ("num_tokens", "units"),
    [(0, 1), (2, 1), (4, 1), (5, 1), (14, 1), (15, 2), (24, 2), (25, 3), (645, 65), (10**6, 10**5)],
)
def test_a_length_is_rounded_half_up_to_tens_and_is_at_least_one(
    num_tokens: int, units: int
) -> None:
    assert tags.units_for(num_tokens) == units


def test_there_are_68_pieces_and_none_begins_another() -> None:
    assert len(set(tags.PIECES)) == len(tags.PIECES) == 68
    assert tags.PIECES[:4] == ('<promise topic="', "<async>", "</async>", "<sync/>")
    assert tags.PIECES[4:] == tuple(f'" tokens="{units}"/>' for units in range(1, 65))


@pytest.mark.parametrize(
    ("decoded", "kept"),
    [
        ("red hats", "red hats"),
        (" red  hats ", " red  hats "),
        ("four words are many", "four words are"),
        ("x" * 70, "x" * 64),
        (f"{'y' * 40} {'z' * 40}", f"{'y' * 40} {'z' * 23}"),
    ],
)
def test_a_decoded_topic_is_cut_to_what_a_topic_may_be(decoded: str, kept: str) -> None:
    assert tags.bounded_topic(decoded) == kept
