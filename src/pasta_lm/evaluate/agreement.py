"""How far two annotations of the same answers agree: on blocks, on whether to fork, on syncs.

Neither is taken for the truth: every figure is the same with the two exchanged. Topics and promised
lengths are not compared, and white space at the ends of a block or before a sync is not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pasta_lm.evaluate.intervals import mean, ratio
from pasta_lm.evaluate.quality import as_dict
from pasta_lm.evaluate.structure import spans
from pasta_lm.language.document import Document

Figures = dict[str, Any]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Marks:
    """Where the tags of an answer stand, in characters of its plain text.

    Attributes:
        blocks: Begin and end of each block, in reading order; blocks of white space are left out.
        syncs: Where the text begins that follows each sync.
    """

    blocks: tuple[Span, ...]
    syncs: frozenset[int]


def marks(document: Document) -> Marks:
    """Return where the tags of an answer of depth 1 stand."""
    text = document.plain_text
    found = list(spans(document))
    trimmed = [_trimmed(text, begin, end) for begin, end in found if end is not None]
    return Marks(
        tuple((begin, end) for begin, end in trimmed if begin < end),
        frozenset(_trimmed(text, place, len(text))[0] for place, end in found if end is None),
    )


def agreement(first: Sequence[Document], second: Sequence[Document]) -> Figures:
    """Return how far two annotations agree, with 95 % intervals over the answers.

    ``exact_f1`` counts blocks with the same ends. ``overlap_f1`` counts pairs of blocks that share
    more than half of the characters that either has: no block can be in two such pairs.
    ``character_f1`` asks of each character whether it is in a block. ``kappa`` is Cohen's, of
    whether an answer has a block (``forks``) or a sync (``syncs``) at all; None where chance alone
    would agree on every answer.

    Raises:
        ValueError: the two are not of the same plain texts, in the same order.
    """
    texts = [(one.plain_text, other.plain_text) for one, other in zip(first, second, strict=True)]
    for index, (one, other) in enumerate(texts):
        if one != other:
            raise ValueError(f"answer {index} has another plain text in the second annotation")
    pairs = [(marks(one), marks(other)) for one, other in zip(first, second, strict=True)]
    blocks = [(one.blocks, other.blocks) for one, other in pairs]
    syncs = [(one.syncs, other.syncs) for one, other in pairs]
    return {
        "num_answers": len(pairs),
        "blocks": {
            "num_first": sum(len(one) for one, _ in blocks),
            "num_second": sum(len(other) for _, other in blocks),
            "exact_f1": _f1([(len({*a} & {*b}), len(a), len(b)) for a, b in blocks]),
            "overlap_f1": _f1([(_num_alike(a, b), len(a), len(b)) for a, b in blocks]),
            "character_f1": _f1([(_shared(a, b), _length(a), _length(b)) for a, b in blocks]),
        },
        "forks": _yes_or_no([(bool(a), bool(b)) for a, b in blocks]),
        "syncs": {
            "num_first": sum(len(one) for one, _ in syncs),
            "num_second": sum(len(other) for _, other in syncs),
            "same": as_dict(mean([float(a == b) for a, b in syncs])),
            "f1": _f1([(len(a & b), len(a), len(b)) for a, b in syncs]),
            "kappa": _yes_or_no([(bool(a), bool(b)) for a, b in syncs])["kappa"],
        },
    }


def cohens_kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Return Cohen's kappa of two judges' yes or no; None where chance alone always agrees.

    Source: Cohen, "A coefficient of agreement for nominal scales", 1960.
    """
    if not pairs:
        return None
    observed = sum(one == other for one, other in pairs) / len(pairs)
    yes = [sum(judge) / len(pairs) for judge in zip(*pairs, strict=True)]
    expected = yes[0] * yes[1] + (1 - yes[0]) * (1 - yes[1])
    return None if expected == 1 else (observed - expected) / (1 - expected)


def _yes_or_no(pairs: Sequence[tuple[bool, bool]]) -> Figures:
    return {
        "num_both": sum(one and other for one, other in pairs),
        "num_first_only": sum(one and not other for one, other in pairs),
        "num_second_only": sum(other and not one for one, other in pairs),
        "num_neither": sum(not one and not other for one, other in pairs),
        "same": as_dict(mean([float(one == other) for one, other in pairs])),
        "kappa": cohens_kappa(pairs),
    }


def _f1(counts: Sequence[tuple[int, int, int]]) -> dict[str, float] | None:
    """Return the harmonic mean of precision and recall, from what is right and given in both."""
    return as_dict(ratio([2 * right for right, _, _ in counts], [a + b for _, a, b in counts]))


def _num_alike(first: Sequence[Span], second: Sequence[Span]) -> int:
    return sum(
        2 * _shared([one], [other]) > max(one[1], other[1]) - min(one[0], other[0])
        for one in first
        for other in second
    )


def _shared(first: Sequence[Span], second: Sequence[Span]) -> int:
    """Return how many characters are in a block of both."""
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in first for b in second)


def _length(blocks: Sequence[Span]) -> int:
    return sum(end - begin for begin, end in blocks)


def _trimmed(text: str, begin: int, end: int) -> Span:
    """Return a span without the white space at its ends."""
    inside = text[begin:end]
    return end - len(inside.lstrip()), begin + len(inside.rstrip())
