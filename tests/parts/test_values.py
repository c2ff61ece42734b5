"""Where texts of fields stand in a document."""

from __future__ import annotations

from typing import Any

import pytest

from pasta_lm.parts.declared import object_of
from pasta_lm.parts.fields import fields_of
from pasta_lm.parts.values import is_same, spans_of

LETTER = "Hotel Aurora,\nLisbon: no pets. Notes of Ines  Costa (straße 5, İzmir); anno."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((text, text) for text in ("Lisbon", "no", "Note", "pets.", "(straße 5", "anno.")),
        ("LISBON", "Lisbon"), (" Lisbon ", "Lisbon"), ("ines costa", "Ines  Costa"),
        ("Hotel Aurora, Lisbon", "Hotel Aurora,\nLisbon"),
        *((value, None) for value in ("Porto", "", " \n", 5, None, ["Lisbon"])),
    ],
)  # fmt: skip
def test_a_text_stands_where_it_occurs_exactly_or_with_case_and_white_space_folded(
    value: Any, text: str | None
) -> None:
    fields = fields_of({"properties": {"a": {"properties": {"b": {}}}}})
    span = spans_of(fields, {"a": {"b": value}}, LETTER)["a.b"]
    assert (None if span is None else LETTER[slice(*span)]) == text


def test_a_word_is_preferred_to_a_part_of_one_and_a_field_that_is_missing_has_no_place() -> None:
    fields = fields_of({"properties": {"pets": {}, "o": {"properties": {"x": {}}}}})
    assert spans_of(fields, {"pets": "no"}, "anno: no pets") == {"pets": [6, 8], "o.x": None}


@pytest.mark.parametrize(
    ("value", "other", "expected"),
    [
        ({"a": [145.0], "b": None}, {"b": None, "a": [145]}, True),
        ({"a": [1, True]}, {"a": [True, 1]}, False), ([1], [1, 1], False),
        ([0], [False], False), ({"a": None}, {}, False), ("1", 1, False),
    ],
)  # fmt: skip
def test_values_are_equal_in_any_order_of_keys(value: Any, other: Any, expected: bool) -> None:
    assert is_same(value, other) is is_same(other, value) is expected


def test_an_object_with_a_key_twice_is_unfinished_as_what_cannot_be_read() -> None:
    fields = fields_of({"properties": {"a": {}, "b": {}}})
    texts = [(' {"k": {"n": 1}},', True), (' {"k": {"n": 1, "n": 2}}}', True)]
    assert object_of(fields, texts) == ({"a": {"k": {"n": 1}}}, ("b",))
