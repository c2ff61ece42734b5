from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pasta_lm.language.check import check
from pasta_lm.language.document import Block, Document, Item, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import escape_topic, unescape_topic
from tests.language import laws

texts = st.lists(st.sampled_from(laws.FRAGMENTS) | st.text(max_size=3), max_size=12).map("".join)
words = st.text(st.sampled_from("ab<>&\"';/=\u00e9"), min_size=1, max_size=8)
topics = st.lists(words | st.sampled_from(("<async>", "&lt;sync")), min_size=1, max_size=3).map(
    " ".join
)
items = st.builds(Text, texts) | st.just(Sync())


def blocks(inside: st.SearchStrategy[Item]) -> st.SearchStrategy[Block]:
    units = st.integers(1, 64) | st.just(10**30)
    return st.builds(Block, topics, units, st.lists(inside, max_size=3).map(tuple))


flat_blocks = blocks(st.builds(Text, texts))
nested_blocks = blocks(st.builds(Text, texts) | flat_blocks)
documents = st.builds(Document, st.lists(items | flat_blocks, max_size=6).map(tuple))
deep_documents = st.builds(Document, st.lists(items | nested_blocks, max_size=6).map(tuple))


@settings(max_examples=500)
@given(texts)
@example("&amp;" * 3 + "lt;async>")
@example("&lt;promise &amp;lt;/async")
@example("<asy<sync>nc>")
def test_every_text_obeys_the_laws_of_the_language(text: str) -> None:
    laws.assert_laws(text)


@settings(max_examples=250)
@given(st.text() | st.text("&amp;lt;<async"))
def test_a_topic_is_escaped_reversibly_and_never_ends_its_quotes(topic: str) -> None:
    assert unescape_topic(escape_topic(topic)) == topic
    assert '"' not in escape_topic(topic)


@settings(max_examples=250)
@given(deep_documents)
def test_what_is_written_reads_back_as_what_it_was(document: Document) -> None:
    assert parse(document.written(), max_depth=2) == document


@settings(max_examples=200)
@given(documents)
def test_the_main_form_keeps_all_but_the_blocks(document: Document) -> None:
    main = parse(document.main_form(), Form.MAIN)
    assert main.main_form() == document.main_form()
    assert [block.topic for block in main.blocks] == [block.topic for block in document.blocks]


@settings(max_examples=200)
@given(documents)
def test_the_annotator_form_keeps_all_but_the_lengths(document: Document) -> None:
    annotated = parse(document.annotator_form(), Form.ANNOTATOR)
    assert annotated.with_lengths(len) == document.with_lengths(len)
    assert annotated.plain_text == document.plain_text


@settings(max_examples=200)
@given(documents)
def test_removing_the_tags_gives_the_text_that_was_annotated(document: Document) -> None:
    plain = document.without_tags()
    assert plain.plain_text == document.plain_text
    assert parse(plain.written()) == plain


SPELLING = {
    "t": "text",
    "P": '<promise topic="a" tokens="2"/>',
    "O": "<async>",
    "A": '<async topic="a">',
    "C": "</async>",
    "S": "<sync/>",
}
VALID = {
    (Form.WRITTEN, 1): re.compile("(t|S|POt*C)*"),
    (Form.WRITTEN, 2): re.compile("(t|S|PO(t|POt*C)*C)*"),
    (Form.MAIN, 1): re.compile("[tPS]*"),
    (Form.ANNOTATOR, 1): re.compile("(t|S|At*C)*"),
    (Form.ANNOTATOR, 2): re.compile("(t|S|A(t|At*C)*C)*"),
}


def strings(symbols: str, longest: int) -> Iterator[str]:
    for length in range(longest + 1):
        yield from map("".join, product(symbols, repeat=length))


def spell(symbols: str) -> str:
    return "".join(SPELLING[symbol] for symbol in symbols)


def written_codes(symbols: str) -> list[str]:
    """Count what is wrong in written form by looking at neighbours and at depth alone."""
    codes = ["PASTA014"] * len(re.findall("P[tS]+O", symbols))
    symbols = re.sub("P([tS]+)(?=O)", r"\1P", symbols)
    codes += ["PASTA013"] * len(re.findall("P(?!O)", symbols))
    codes += ["PASTA012"] * len(re.findall("(?<!P)O", symbols))
    codes += ["PASTA102"] * len(re.findall("O[SP]*C", symbols))
    return sorted(codes + depth_codes(symbols, opening="O", nested="P|(?<!P)O"))


def annotator_codes(symbols: str) -> list[str]:
    codes = ["PASTA020"] * symbols.count("P") + ["PASTA021"] * symbols.count("O")
    codes += ["PASTA102"] * len(re.findall("[AO][SP]*C", symbols))
    return sorted(codes + depth_codes(symbols, opening="AO", nested="[AO]"))


def main_codes(symbols: str) -> list[str]:
    codes = ["PASTA019"] * symbols.count("O")
    flat = depth_codes(symbols, opening="O", nested="(?!)")
    codes += [code for code in flat if code == "PASTA017"]
    idle = re.findall("S", re.sub("[PO][^S]*S", "", symbols))
    return sorted(codes + ["PASTA101"] * len(idle))


def depth_codes(symbols: str, opening: str, nested: str) -> list[str]:
    """Count what only the number of open blocks makes wrong."""
    codes, depth, is_idle = [], 0, True
    for at, symbol in enumerate(symbols):
        if depth and re.compile(nested).match(symbols, at):
            codes.append("PASTA015")
        if symbol in opening:
            depth, is_idle = depth + 1, False
        elif symbol == "C":
            codes += [] if depth else ["PASTA017"]
            depth = max(0, depth - 1)
        elif symbol == "S":
            codes += ["PASTA018"] if depth else ["PASTA101"] * is_idle
            is_idle = is_idle or not depth
    return codes + ["PASTA016"] * depth


ORACLES = {Form.WRITTEN: written_codes, Form.MAIN: main_codes, Form.ANNOTATOR: annotator_codes}


@pytest.mark.parametrize(
    ("form", "symbols", "longest"),
    [
        (Form.WRITTEN, "tPOCS", 6),
        (Form.MAIN, "tPOCS", 5),
        (Form.ANNOTATOR, "tACS", 6),
        (Form.ANNOTATOR, "tPOACS", 4),
    ],
)
def test_every_short_string_has_exactly_the_faults_that_the_oracle_counts(
    form: Form, symbols: str, longest: int
) -> None:
    for string in strings(symbols, longest):
        codes = sorted(diagnostic.code for diagnostic in check(spell(string), form))
        assert codes == ORACLES[form](string), string


@pytest.mark.parametrize(
    ("form", "max_depth", "symbols", "longest"),
    [
        (Form.WRITTEN, 1, "tPOCS", 5),
        (Form.WRITTEN, 2, "tPOC", 6),
        (Form.MAIN, 1, "tPOCS", 4),
        (Form.ANNOTATOR, 1, "tACS", 6),
        (Form.ANNOTATOR, 2, "tAC", 6),
    ],
)
def test_a_short_string_is_parsed_exactly_if_the_regular_expression_matches(
    form: Form, max_depth: int, symbols: str, longest: int
) -> None:
    for string in strings(symbols, longest):
        is_valid = VALID[form, max_depth].fullmatch(string) is not None
        assert laws.is_parsed(spell(string), form, max_depth) == is_valid, string


def test_every_short_string_is_valid_once_it_is_fixed() -> None:
    for form in laws.STORED_FORMS:
        for string in strings("tPOACS", 4):
            laws.assert_check_parse_and_fix_agree(spell(string), form)
