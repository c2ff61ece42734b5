from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.models.text_stream import StopWatch

letters = st.text("ab", max_size=12)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def fed(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """Return what a watch released of text in pieces, and whether it found a stop."""
    watch = StopWatch(stops)
    released = "".join(watch.feed(piece) for piece in pieces)
    has_matched = watch.has_matched
    return released + watch.flush(), has_matched


@pytest.mark.parametrize(
    ("stops", "text", "released"),
    [
        (["END"], "one END two", "one "),
        (["END"], "one EN", "one EN"),  # what never became a stop is text
        (["aab"], "aaab", "a"),  # a stop may begin inside what looked like one
        (["abc", "b"], "xabc", "xa"),  # the first to be complete
        (["bc", "abc"], "xabc", "x"),  # of two complete at once, the longer
        (["\n\n"], "a\nb\n\nc", "a\nb"),
        ([], "anything", "anything"),
    ],
)
def test_what_stands_before_the_stop_is_released(
    stops: list[str], text: str, released: str
) -> None:
    for pieces in ([text], list(text)):
        assert fed(stops, pieces)[0] == released


@given(stop_lists, st.lists(letters, max_size=6))
def test_stops_do_not_depend_on_how_the_text_was_cut(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    assert fed(stops, pieces) == fed(stops, list(text)) == fed(stops, [text])


@given(stop_lists, st.lists(letters, max_size=6))
def test_no_stop_is_ever_released(stops: list[str], pieces: list[str]) -> None:
    released, has_matched = fed(stops, pieces)
    assert has_matched == any(stop in "".join(pieces) for stop in stops)
    assert not any(stop in released for stop in stops)
    assert "".join(pieces).startswith(released)


@given(stop_lists, letters)
def test_only_what_may_yet_become_a_stop_is_held_back(stops: list[str], text: str) -> None:
    watch = StopWatch(stops)
    released = watch.feed(text)
    if watch.has_matched:
        return
    held = text[len(released) :]
    assert released + held == text
    assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_nothing_comes_after_a_stop() -> None:
    watch = StopWatch(["x"])
    assert watch.feed("ax") == "a"
    assert watch.feed("more") == watch.flush() == ""


def test_a_flush_forgets_what_was_held_back() -> None:
    watch = StopWatch(["ab"])
    assert watch.feed("a") == ""
    assert watch.flush() == "a"
    assert watch.feed("b") == "b", "a tag stood between them"
