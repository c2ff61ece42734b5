"""JSON schemas as llguidance gets them: compact, and refused where it would hold other values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pasta_lm.errors import UsageError

COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
FLEXIBLE = {"whitespace_flexible": True}
"""Options of llguidance: at most a space behind a comma or colon, or white space without end."""

BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
"""Keys with an object of schemas, whose own keys are names."""
VALUES, REMARKS = {"const", "enum"}, {"default", "examples", "example", "x-guidance"}
FORMATS = {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri"}
FORMATS |= {"uuid"}
"""Formats that are held; others are remarks, as in JSON Schema."""
NO_LEAP = {"date-time": "^.{17}[0-5]", "time": "^.{6}[0-5]"}
"""Patterns without a second 60, which llguidance allows in every minute."""
LARGEST = 2**53  # from here on a double, as which llguidance keeps numbers, skips whole ones


def compact_schema(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON, whose values are compact unless it asks for flexible white space.

    A ``UsageError`` names an option or a number that would not be held.
    """
    options = schema.get("x-guidance", COMPACT)
    if options not in (COMPACT, FLEXIBLE, {"whitespace_flexible": False}):
        problem = f"x-guidance has no options of llguidance but whitespace_flexible, not {options}"
        raise UsageError(problem, hint="others leave out rules of the schema")
    whole = json.loads(json.dumps(schema))
    for node in _nodes(whole):
        _check_numbers(node)
        if (form := str(node.get("format"))) not in FORMATS:
            node.pop("format", None)
        if form in NO_LEAP and isinstance(rules := node.setdefault("allOf", []), list):
            rules.append({"pattern": NO_LEAP[form]})
    return json.dumps({**whole, "x-guidance": FLEXIBLE if options == FLEXIBLE else COMPACT})


def _nodes(schema: object) -> Iterator[dict[str, Any]]:
    """Return all schemas inside a schema."""
    waiting = [schema]  # instead of recursion, which Python bounds
    while waiting:
        node = waiting.pop()
        waiting += node if isinstance(node, list) else ()
        if isinstance(node, dict):
            yield node
            for key in node.keys() - VALUES - REMARKS:
                is_named = key in NAMED and isinstance(node[key], dict)
                waiting += node[key].values() if is_named else [node[key]]


def _check_numbers(node: Mapping[str, Any]) -> None:
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
