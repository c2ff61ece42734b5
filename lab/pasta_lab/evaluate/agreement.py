"""Agreement of two annotations of the same answers: blocks, forks and syncs, with intervals.

All measures are symmetric. White space at the ends of a block or before a sync does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sklearn.metrics import cohen_kappa_score

from pasta_lab.evaluate.structure import spans
from pasta_lm.errors import InputError
from pasta_lm.language.document import Document
from pasta_lm.learn.data.annotated import Record, read_records
from pasta_lm.measure.table import mean, ratio, to_json

Figures = dict[str, Any]
Span = tuple[int, int]


class Marks(NamedTuple):
    """The places of an answer's tags, in characters of its plain text."""

    blocks: tuple[Span, ...]
    """Begin and end of each block, in reading order; blocks of white space are left out."""
    syncs: frozenset[int]
    """The beginning of the text after each sync."""


def marks(document: Document) -> Marks:
    """Return the positions of the tags of an answer of depth 1."""
    text = document.plain_text
    tags = list(spans(document))
    trimmed = [_trimmed(text, begin, end) for begin, end in tags if end is not None]
    return Marks(
        tuple((begin, end) for begin, end in trimmed if begin < end),
        frozenset(_trimmed(text, place, len(text))[0] for place, end in tags if end is None),
    )


def paired(first: Sequence[Record], second: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the records whose ids are in both annotations, in the order of the second.

    Raises:
        InputError: no id is in both, or an answer has another plain text in the second.
    """
    known = {record.id: record for record in first}
    pairs = [(known[record.id], record) for record in second if record.id in known]
    if not pairs:
        raise InputError(
            "no answer is in both annotations", hint="both need the same answers under the same ids"
        )
    for record, other in pairs:
        if record.document.plain_text != other.document.plain_text:
            raise InputError(f"answer {record.id} has another plain text in the second annotation")
    return [record for record, _ in pairs], [other for _, other in pairs]


def compared(first: Path, second: Path) -> Figures:
    """Return the agreement of two files, in the answers that both have."""
    sides = paired(read_records(first), read_records(second))
    return agreement(*([record.document for record in side] for side in sides))


def agreement(first: Sequence[Document], second: Sequence[Document]) -> Figures:
    """Return the agreement of annotations of the same texts, with 95 % intervals over the answers.

    ``exact_f1`` counts blocks with the same ends. ``overlap_f1`` counts pairs of blocks that share
    more than half of the characters that either has. ``character_f1`` asks of each character
    whether it is in a block. ``kappa`` is Cohen's, of whether an answer has a block (``forks``) or
    a sync (``syncs``); None where chance alone would agree on every answer.
    """
    pairs = [(marks(a), marks(b)) for a, b in zip(first, second, strict=True)]
    blocks = [(a.blocks, b.blocks) for a, b in pairs]
    syncs = [(a.syncs, b.syncs) for a, b in pairs]
    return {
        "num_answers": len(pairs),
        "blocks": {
            "num_first": sum(len(a) for a, _ in blocks),
            "num_second": sum(len(b) for _, b in blocks),
            "exact_f1": _f1([(len({*a} & {*b}), len(a), len(b)) for a, b in blocks]),
            "overlap_f1": _f1([(_num_alike(a, b), len(a), len(b)) for a, b in blocks]),
            "character_f1": _f1([(_shared(a, b), _length(a), _length(b)) for a, b in blocks]),
        },
        "forks": _yes_or_no([(bool(a), bool(b)) for a, b in blocks]),
        "syncs": {
            "num_first": sum(len(a) for a, _ in syncs),
            "num_second": sum(len(b) for _, b in syncs),
            "same": to_json(mean([float(a == b) for a, b in syncs])),
            "f1": _f1([(len(a & b), len(a), len(b)) for a, b in syncs]),
            "kappa": _yes_or_no([(bool(a), bool(b)) for a, b in syncs])["kappa"],
        },
    }


def cohens_kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Return Cohen's kappa of two annotations' yes or no; None if chance alone always agrees."""
    if len({answer for pair in pairs for answer in pair}) < 2:
        return None
    return float(cohen_kappa_score(*zip(*pairs, strict=True)))


def _yes_or_no(pairs: Sequence[tuple[bool, bool]]) -> Figures:
    return {
        "num_both": sum(first and second for first, second in pairs),
        "num_first_only": sum(first and not second for first, second in pairs),
        "num_second_only": sum(second and not first for first, second in pairs),
        "num_neither": sum(not first and not second for first, second in pairs),
        "same": to_json(mean([float(first == second) for first, second in pairs])),
        "kappa": cohens_kappa(pairs),
    }


def _f1(counts: Sequence[tuple[int, int, int]]) -> Any:
    """Return the harmonic mean of precision and recall, from what is right and given in both."""
    return to_json(ratio([2 * right for right, _, _ in counts], [a + b for _, a, b in counts]))


def _num_alike(first: Sequence[Span], second: Sequence[Span]) -> int:
    return sum(
        2 * _shared([block], [other]) > max(block[1], other[1]) - min(block[0], other[0])
        for block in first
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


def rows(report: Figures) -> list[tuple[str, str, str]]:
    """Return the rows of a table: what is compared, the measure, the value."""
    blocks, forks, syncs = report["blocks"], report["forks"], report["syncs"]
    figures = (
        ("blocks", "F1, pairs that share most characters", blocks["overlap_f1"]),
        ("blocks", "F1, exactly the same ends", blocks["exact_f1"]),
        ("blocks", "F1 of characters that are in a block", blocks["character_f1"]),
        ("fork or not", "share of answers", forks["same"]),
        ("fork or not", "Cohen's kappa", forks["kappa"]),
        ("syncs", "share of answers with the same", syncs["same"]),
        ("syncs", "F1", syncs["f1"]),
        ("a sync or none", "Cohen's kappa", syncs["kappa"]),
    )
    return [(what, measure, _value(value)) for what, measure, value in figures]


def _value(value: dict[str, float] | float | None) -> str:
    if isinstance(value, dict):
        return f"{value['mean']:.2f} ({value['low']:.2f} to {value['high']:.2f})"
    return "-" if value is None else f"{value:.2f}"
