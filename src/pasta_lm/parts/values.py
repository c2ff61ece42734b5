"""What is known of the value of a part: how likely it is, and where it stands in the document.

The probability is among all that its form allows, at temperature 1 and without penalties.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import product
from math import exp, fsum
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Answer, TokenLogprobs
from pasta_lm.engines.schemas import MARKS
from pasta_lm.parts.fields import Part

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary


def scores_of(answer: Answer) -> dict[int, list[TokenLogprobs]]:
    """Return the scores of the tokens that each thread chose in its form, its end among them."""
    scores = defaultdict[int, list[TokenLogprobs]](list)
    for (thread, _), score in sorted(answer.in_form.items(), key=lambda pair: pair[0]):
        scores[thread].append(score)
    return scores


def confidence_of(
    answer: Answer, parts: Sequence[Part], vocabulary: Vocabulary
) -> dict[str, float | None]:
    """Return the probability of each part's value; None: unfinished, or no form holds it."""
    scores, records = scores_of(answer), answer.trace.by_thread()
    known: dict[str, float | None] = dict.fromkeys(part.name for part in parts)
    for thread, part in enumerate(parts, start=1):
        if thread in scores and answer.trace.threads[thread].finish_reason == "stop":
            ids = [r.token or 0 for r in records[thread] if not r.is_forced]
            known[part.name] = _probability(part, ids, scores[thread], vocabulary)
    return known


def _probability(
    part: Part, ids: Sequence[int], scores: Sequence[TokenLogprobs], vocabulary: Vocabulary
) -> float | None:
    """Return the product over the tokens up to where a value is certain, all its ends together."""
    text = vocabulary.text(ids)
    if (end := part.read(text)[1]) is None:
        return None
    value = text[:end]
    is_open = part.schema is not None and value[-1:].isdigit()  # more digits could follow
    known = [vocabulary.text(ids[:step]) for step in range(len(scores) + 1)]
    sure = (step for step, text in enumerate(known, -1) if len(text) - is_open >= end)
    last = min(next(sure, len(ids)), len(scores) - 1)
    left = value[len(known[last]) :]  # what that token has of the value
    marks = product(("", " "), MARKS) if part.schema is not None else ()
    ends = {f"{left}{space}{mark}" for space, mark in marks}
    ends -= {left} if left and is_open else set()
    (_, *others), first = scores[last].top, scores[last].logprob
    ways = [first, *(p for token, p in others if vocabulary.token_text(token) in ends)]
    return min(1.0, exp(fsum(s.logprob for s in scores[:last])) * fsum(map(exp, ways)))


Spans = Mapping[str, list[int] | None]
"""By field the first and the last offset of its text, in characters; None: it is not there."""


def spans_of(fields: Iterable[Part], data: object, document: str) -> Spans:
    """Return the first place of each field's value; None if there is none, or it is no text."""
    return {field.name: _span(value_at(field.path, data), document) for field in fields}


def value_at(path: Iterable[str | int], data: object) -> object:
    """Return the value behind some keys; None if one is missing."""
    try:
        return reduce(lambda value, key: value[key], path, data)  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        return None


def is_same(value: object, other: object) -> bool:
    """Return whether two JSON values are equal: 145.0 and 145 are, 1 and true at no depth."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(is_same(value[k], other[k]) for k in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(is_same, value, other))
    return value == other and isinstance(value, bool) is isinstance(other, bool)


def _span(value: object, document: str) -> list[int] | None:
    """Look for whole words, then for any text, and then with case and white space folded."""
    if not isinstance(value, str) or not value.strip():
        return None
    exact, folded = re.escape(value), r"\s+".join(map(re.escape, value.split()))
    patterns = rf"(?<!\w){exact}(?!\w)", exact, rf"(?i)(?<!\w){folded}(?!\w)", f"(?i){folded}"
    matches = (re.search(pattern, document) for pattern in patterns)
    return next(([*match.span()] for match in matches if match), None)
