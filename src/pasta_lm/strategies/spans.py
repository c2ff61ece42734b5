"""Where the texts of fields stand in a document: a plain search, no model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pasta_lm.strategies.fields import Part

Spans = Mapping[str, list[int] | None]
"""By field the first and the last offset of its text, in characters; None: it is not there."""


def spans_of(fields: Iterable[Part], data: object, document: str) -> Spans:
    """Return the first place of each field's value; None if there is none, or it is no text."""
    return {field.name: _span(_value(field.path, data), document) for field in fields}


def _value(path: Iterable[str], data: object) -> object:
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _span(value: object, document: str) -> list[int] | None:
    """Look for whole words, then for any text, and then with case and white space folded."""
    if not isinstance(value, str) or not value.strip():
        return None
    exact, folded = re.escape(value), r"\s+".join(map(re.escape, value.split()))
    for pattern in (
        rf"(?<!\w){exact}(?!\w)",
        exact,
        rf"(?i)(?<!\w){folded}(?!\w)",
        f"(?i){folded}",
    ):
        if match := re.search(pattern, document):
            return [*match.span()]
    return None
