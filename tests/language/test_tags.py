from __future__ import annotations

import pytest

from pasta_lm.language import tags

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
