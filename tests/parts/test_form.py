"""The words of a schema: its form in a prompt, and comments in front of its fields."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from pasta_lm.engines.request import SamplingParams
from pasta_lm.parts.declared import fill_request
from pasta_lm.parts.fields import fields_of
from pasta_lm.parts.form import SchemaForm
from pasta_lm.strategies import Prompt
from tests.taught import VOCABULARIES


class Guest(BaseModel):
    """Who stays\nin the room."""

    full_name: str = Field(description="Given name, then family name.")
    mail: str | None = Field(None, title="E-mail")
    friends: list[Guest]


class Booking(BaseModel):
    """A room for somebody."""

    guest: Guest
    kind: Literal["single", "double"] | None
    tags: list[Literal["a", "b"]]


BOOKING = """Booking: A room for somebody.
{
  // Who stays in the room.
  guest: {
    // Given name, then family name.
    full_name: string,
    // E-mail
    mail: string | null,
    friends: Guest[]
  },
  kind: "single" | "double" | null,
  tags: ("a" | "b")[]
}"""
TWICE: dict[str, Any] = {"$defs": {"a": {"properties": {"x": {}}, "description": "An a."}}}
TWICE["properties"] = {"b": {"$ref": "#/$defs/a", "description": "B."}, "c": {"$ref": "#/$defs/a"}}
FAN: dict[str, Any] = {"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {
    str(n): {"properties": dict.fromkeys("ab", {"$ref": f"#/$defs/{n + 1}"})} for n in range(40)
}}  # fmt: skip
DEEP: dict[str, Any] = {}
for _ in range(200):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        (Booking.model_json_schema(), BOOKING),
        ({"properties": {"a b": {"type": ["string", "null"], "format": "date"}, "x": True}},
         '{"a b": date | null, x: any}'),
        ({"properties": {"o": {"properties": {"é": {"const": "ü"}}}}}, '{o: {é: "ü"}}'),
        ({"properties": {"m": {"type": "object"}, "l": {"type": "array"}}},
         "{m: object, l: array}"),
        ({"properties": {"l": {"items": {"type": "integer"}}, "a": {"anyOf": 5, "items": []}}},
         "{l: integer[], a: any}"),
        (TWICE, "{\n  // B.\n  b: {x: any},\n  // An a.\n  c: {x: any}\n}"),
        ({"properties": {"a_b": {"title": "A B", "type": "string"}}}, "{a_b: string}"),
    ],
)  # fmt: skip
def test_a_form_has_keys_types_and_members_and_the_words_above_their_key(
    schema: dict[str, Any], form: str
) -> None:
    assert SchemaForm(schema).text == form


LISTS: dict[str, Any] = {}
for _ in range(900):
    LISTS = {"anyOf": [{"items": LISTS}]}
MANY = {"enum": [*range(10_000)]}


@pytest.mark.parametrize(
    ("schema", "size"), [(FAN, 200_000), (DEEP, 10_000), (LISTS, 200), (MANY, 1000)]
)
def test_the_form_of_a_schema_that_opens_without_end_is_bounded(
    schema: dict[str, Any], size: int
) -> None:
    assert 30 < len(SchemaForm(schema).text) < size


def test_the_words_of_a_field_stand_in_front_of_its_keys_also_behind_another() -> None:
    full_name, mail, _, kind, _ = fields_of(Booking.model_json_schema())
    assert full_name.lead_behind(()) == '// Given name, then family name.\n{"guest": {"full_name":'
    assert mail.lead_behind(full_name.path) == ',\n// E-mail\n"mail":'
    assert kind.lead_behind(mail.path) == '}, "kind":'
    assert mail.lead_behind(kind.path) == ',\n// E-mail\n"guest": {"mail":'


def test_words_that_are_no_text_of_unicode_are_written_out() -> None:
    schema = {"properties": {"a": {"description": "\ud800", "enum": ["\ud801"]}}}
    (field,) = fields_of(schema)
    assert (SchemaForm(schema).text, field.words) == (
        '{\n  // \\ud800\n  a: "\\ud801"\n}', "\\ud800",
    )  # fmt: skip


FIELDS = {"properties": {"nights": {"type": "integer", "description": "Of the stay."}}}
FORM = "{\n  // Of the stay.\n  nights: integer\n}"
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("key", ["nights", "title"])
@pytest.mark.parametrize(
    ("words", "has_words"),
    [({}, False), ({"title": "Nights!"}, None), ({"title": "Stay"}, True),
     ({"description": ""}, False), ({"description": "Of the stay."}, True)],
)  # fmt: skip
def test_a_title_that_repeats_its_key_and_the_name_of_a_class_are_no_words(
    key: str, words: dict[str, str], has_words: bool | None
) -> None:
    has_words = key != "nights" if has_words is None else has_words
    assert SchemaForm({"title": "Booking", "properties": {key: words}}).has_words is has_words
    referred = {"properties": {key: {"$ref": "#/$defs/X"}}, "$defs": {"X": {"title": "X", **words}}}
    assert SchemaForm(referred).has_words is bool(words.get("description"))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([{"role": "user", "content": "Two."}], f"Two.\n\nForm: {FORM}"),
        ([SYSTEM, {"role": "user", "content": "Two."}], f"Two.\n\nForm: {FORM}"),
        ([{"role": "user", "content": f"Two. {FORM} Begin."}], f"Two. {FORM} Begin."),
        ("Two.", None),
    ],
)
def test_the_last_message_shows_the_form_unless_it_does_so_already_or_there_are_no_words(
    prompt: Prompt, expected: str | None
) -> None:
    vocabulary = VOCABULARIES["byte_level"]
    if expected is not None:
        shown = [*prompt[:-1], {"role": "user", "content": expected}]
    ids = fill_request(prompt, FIELDS, vocabulary, SamplingParams()).prompt
    assert [*ids] == vocabulary.encode_prompt(prompt if expected is None else shown)
    silent = fill_request(prompt, {"properties": {"nights": {}}}, vocabulary, SamplingParams())
    assert [*silent.prompt] == vocabulary.encode_prompt(prompt)
