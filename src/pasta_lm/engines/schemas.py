"""JSON schemas as llguidance gets them: compact, and refused where it would hold other values.

A fault is named in the words of the schema. Fields may also be listed: ``name, year int``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol, Self

from pasta_lm.errors import MissingExtraError, UsageError

try:
    from llguidance import LLMatcher
except ImportError:  # only for answers that must match a form
    LLMatcher = None  # type: ignore[assignment,misc]

Schema = Mapping[str, Any]
COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
FLEXIBLE = {"whitespace_flexible": True}
"""Options of llguidance: at most a space behind a comma or colon, or white space without end."""

BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
"""Keys with an object of schemas, whose own keys are names."""
VALUES, REMARKS = {"const", "enum"}, {"default", "examples", "example", "x-guidance"}
LEAP = ".{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00"
DAY = f"^(?:.{{5}}(?:1|0[^2])|.{{8}}(?:[^2]|2[^9])|{LEAP})"
PATTERNS = {"date": [DAY], "date-time": [DAY, "^.{17}[0-5]"], "time": ["^.{6}[0-5]"]}
"""Patterns without what llguidance allows: a second 60, and 29 February of common years."""
FORMATS = {*PATTERNS, "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
"""Formats that are held; others are remarks, as in JSON Schema."""
MARKS = ("", ",", "}", "]", "\n")  # that may stand behind a value inside an object or a list
LARGEST = 2**53  # from here on a double, as which llguidance keeps numbers, skips whole ones
MAX_CHECKED = 256  # schemas whose fault is kept: of a request's fields, and of those that repeat it
TYPES = "array, boolean, integer, null, number, object, string"
FAULTS = {
    r"Invalid type: (.*)": r"no such type '\1'",
    r"Unimplemented keys: \[(.*)\]": r"rules that cannot be held: \1",
    r"Regex is empty.*": "no text matches it",
    r"\bf64\b": "a number",
}
"""Patterns of what llguidance says of a schema, and how a user reads it."""
SHORT_TYPES: Mapping[str, Schema] = {
    "str": {"type": "string"}, "int": {"type": "integer"}, "float": {"type": "number"},
    "bool": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "string"}},
}  # fmt: skip
"""Without dates: of "17 April 2026" models write 1740-04-17, as they copy its beginning."""


class PydanticModel(Protocol):
    """A class of pydantic, which need not be installed."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...
    @classmethod
    def model_validate(cls, obj: object) -> Self: ...


def schema_of(form: Schema | str | type[PydanticModel]) -> Schema:
    if isinstance(form, str):
        return listed_fields(form)
    return form if isinstance(form, Mapping) else form.model_json_schema()


def listed_fields(text: str) -> Schema:
    """Return the schema of fields that are listed as ``name, year int``; a type left out is str."""
    fields = dict[str, Schema]()
    for words in (field.split() for field in text.split(",")):
        name, kind = (*words, "str")[:2] if 0 < len(words) < 3 else ("", "")
        if not re.fullmatch(r"[\w-]+", name) or name in fields:
            reason = "stands twice" if name in fields else "is not a name, or a name and a type"
            hint = "separate fields by commas: name, year int, paid bool"
            raise UsageError(f"field {' '.join(words)!r} {reason}", hint=hint)
        if kind not in SHORT_TYPES:
            hint = f"one of {', '.join(SHORT_TYPES)}"
            raise UsageError(f"field {name}: no such type {kind!r}", hint=hint)
        fields[name] = SHORT_TYPES[kind]
    return {"type": "object", "properties": fields, "required": [*fields]}


def checked_schema(schema: Schema) -> str:
    """Return a compact schema; a ``UsageError`` names what no text can be held to."""
    if "draft-03" in str(schema.get("$schema")):
        raise UsageError("draft 3 of JSON Schema: rules would be left out")
    if LLMatcher is None:
        raise MissingExtraError("a schema for the answer (llguidance)", "schemas")
    if fault := _fault(text := compact_schema(schema)):
        hint = f"one of {TYPES}" if fault.startswith("Invalid type: ") else None
        for pattern, words in FAULTS.items():
            fault = re.sub(pattern, words, fault)
        raise UsageError(fault, hint=hint)
    return text


@lru_cache(MAX_CHECKED)
def _fault(text: str) -> str:
    return str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text)))


def compact_schema(schema: Schema) -> str:
    """Return a schema as JSON, compact by default; a ``UsageError`` names what is not held."""
    options = schema.get("x-guidance", COMPACT)
    if options not in (COMPACT, FLEXIBLE, {"whitespace_flexible": False}):
        problem = f"x-guidance has no options of llguidance but whitespace_flexible, not {options}"
        raise UsageError(problem, hint="others leave out rules of the schema")
    whole = json.loads(json.dumps(schema))
    for node in _nodes(whole):
        _check_numbers(node)
        if (form := str(node.get("format"))) not in FORMATS:
            node.pop("format", None)
        if form in PATTERNS and isinstance(rules := node.setdefault("allOf", []), list):
            rules += ({"pattern": pattern} for pattern in PATTERNS[form])
    return json.dumps({**whole, "x-guidance": FLEXIBLE if options == FLEXIBLE else COMPACT})


def _nodes(schema: object) -> Iterator[dict[str, Any]]:
    waiting = [schema]  # instead of recursion, which Python bounds
    while waiting:
        node = waiting.pop()
        waiting += node if isinstance(node, list) else ()
        if isinstance(node, dict):
            yield node
            for key in node.keys() - VALUES - REMARKS:
                is_named = key in NAMED and isinstance(node[key], dict)
                waiting += node[key].values() if is_named else [node[key]]


def _check_numbers(node: Schema) -> None:
    for key, waiting in ((key, [value]) for key, value in node.items() if key in BOUNDS | VALUES):
        while waiting:
            value = waiting.pop()
            if isinstance(value, list | dict):
                waiting += value if isinstance(value, list) else value.values()
            elif isinstance(value, int | float) and not _is_held(value, key in BOUNDS):
                reason = f"{key} has the number {str(value)[:40]}, which cannot be held exactly"
                hint = "whole numbers are held up to 2**53 - 1; write larger ones as texts"
                raise UsageError(reason, hint=hint)


def _is_held(value: float, is_bound: bool) -> bool:
    is_finite = -(2**1023) < value < 2**1023
    return is_finite and (abs(value) < LARGEST if is_bound else float(value) == value)
