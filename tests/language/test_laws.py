from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

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


@settings(max_examples=400)
@given(texts, st.randoms(use_true_random=False))
def test_any_cut_gives_the_same_lexemes(text: str, chance: random.Random) -> None:
    places = sorted(chance.choices(range(len(text) + 1), k=4))
    ends = [0, *places, len(text)]
    pieces = [text[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    assert laws.lex(pieces) == laws.lex([text])


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
