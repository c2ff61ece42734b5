"""Where texts of fields stand in a document."""

from __future__ import annotations

from typing import Any

import pytest

from pasta_lm.parts.fields import fields_of
from pasta_lm.parts.values import spans_of

LETTER = "Hotel Aurora,\nLisbon: no pets. Notes of Ines  Costa (straße 5, İzmir); anno."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Lisbon", "Lisbon"),
        ("LISBON", "Lisbon"),
        ("Hotel Aurora, Lisbon", "Hotel Aurora,\nLisbon"),
        ("ines costa", "Ines  Costa"),
        (" Lisbon ", "Lisbon"),
        ("no", "no"),
        ("Note", "Note"),
        ("pets.", "pets."),
        ("(straße 5", "(straße 5"),
        ("anno.", "anno."),
        ("Porto", None),
        ("", None),
        (" \n", None),
        (5, None),
        (None, None),
        (["Lisbon"], None),
    ],
)
def test_a_text_stands_where_it_occurs_exactly_or_with_case_and_white_space_folded(
    value: Any, text: str | None
) -> None:
    fields = fields_of({"properties": {"a": {"properties": {"b": {}}}}})
    span = spans_of(fields, {"a": {"b": value}}, LETTER)["a.b"]
    assert (None if span is None else LETTER[slice(*span)]) == text


def test_a_word_is_preferred_to_a_part_of_one_and_a_field_that_is_missing_has_no_place() -> None:
    fields = fields_of({"properties": {"pets": {}, "o": {"properties": {"x": {}}}}})
    assert spans_of(fields, {"pets": "no"}, "Notes, anno: no pets") == {
        "pets": [13, 15],
        "o.x": None,
    }
