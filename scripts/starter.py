"""Write the figures of ``corpora/starter/README.md`` from the two files beside it.

``python scripts/starter.py`` rewrites what stands below its mark; a test holds the card to it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, mean, median, quantiles
from typing import Any, NamedTuple

from sklearn.metrics import cohen_kappa_score

from pasta_lm.engines.annotated import Record, read_records
from pasta_lm.engines.scripted import words
from pasta_lm.evaluate.intervals import as_dict, ratio
from pasta_lm.evaluate.intervals import mean as interval_of_mean
from pasta_lm.evaluate.structure import spans
from pasta_lm.interpreter.speed import document_speedup
from pasta_lm.language.document import Document

FOLDER = Path(__file__).parents[1] / "corpora" / "starter"
ROWS, SECOND_PASS, CARD = (
    FOLDER / name for name in ("starter.jsonl", "second_pass.jsonl", "README.md")
)
MARK = "<!-- below: scripts/starter.py -->\n"
TOKENS_PER_WORD = 1.3
"""About what tokenizers of large models make of English; the promised lengths are from it."""


class Row(NamedTuple):
    """A record with its domain."""

    domain: str
    record: Record
    speedup: float
    """Theoretical, one token for a word and for a piece of a tag."""

    @property
    def num_blocks(self) -> int:
        """Return how many blocks the answer has."""
        return len(self.record.document.blocks)


def estimate_tokens(text: str) -> int:
    """Return an estimate of the number of tokens, as used for the lengths in the files."""
    return round(TOKENS_PER_WORD * len(text.split()))


def read() -> list[Row]:
    """Return the rows of the data set."""
    lines = ROWS.read_text("utf-8").splitlines()
    return [
        Row(json.loads(line)["domain"], record, _speedup(record))
        for line, record in zip(lines, read_records(ROWS), strict=True)
    ]


def both_passes() -> tuple[list[Record], list[Record]]:
    """Return both annotations of the doubly annotated answers, in the same order."""
    second = read_records(SECOND_PASS)
    first = {record.id: record for record in read_records(ROWS)}
    return [first[record.id] for record in second], second


def figures() -> str:
    """Return the generated part of the card."""
    rows = read()
    first, second = both_passes()
    found = agreement([one.document for one in first], [one.document for one in second])
    return "\n".join([*_statistics(rows), *_domains(rows), *_agreement(found)]) + "\n"


def _speedup(record: Record) -> float:
    return document_speedup(record.document, lambda text: len(words(text)))


def _statistics(rows: Sequence[Row]) -> Iterator[str]:
    documents = [row.record.document for row in rows]
    forked = [row for row in rows if row.num_blocks]
    blocks = [len(block.plain_text.split()) for one in documents for block in one.blocks]
    syncs = [one.num_syncs for one in documents]
    tenths = quantiles(blocks, n=10, method="inclusive")
    histogram = Counter(row.num_blocks for row in forked)
    yield "\n## Statistics\n"
    yield f"{len(rows):,} rows in {len({row.domain for row in rows})} domains.\n"
    yield "| figure | value |\n|---|---|"
    yield f"| answers with blocks | {len(forked)} |"
    yield f"| answers without, which stay sequential | {_share(len(rows) - len(forked), rows)} |"
    yield f"| words in an answer | {mean(_num_words(rows)):.0f} on average |"
    yield f"| blocks | {len(blocks):,} |"
    yield f"| blocks in an answer that has some | {len(blocks) / len(forked):.1f} on average |"
    yield f"| … how many answers have so many | {_counts(histogram)} |"
    yield (
        f"| words in a block | median {median(blocks):.0f}, nine tenths have {tenths[0]:.0f} or "
        f"more, one tenth has {tenths[-1]:.0f} or more |"
    )
    yield f"| answers with a sync | {_share(sum(map(bool, syncs)), rows)} |"
    yield f"| syncs | {sum(syncs)} |"
    yield f"| theoretical speedup, all answers | {_mean_speedup(rows)} |"
    yield f"| … answers with blocks | {_mean_speedup(forked)} |"


def _domains(rows: Sequence[Row]) -> Iterator[str]:
    yield "\n| domain | rows | sequential | with a sync | blocks | speedup | … with blocks |"
    yield "|---|---|---|---|---|---|---|"
    for domain in dict.fromkeys(row.domain for row in rows):
        chosen = [row for row in rows if row.domain == domain]
        forked = [row for row in chosen if row.num_blocks]
        cells = [
            domain,
            len(chosen),
            len(chosen) - len(forked),
            sum(row.record.document.num_syncs > 0 for row in chosen),
            sum(row.num_blocks for row in chosen),
            _mean_speedup(chosen),
            _mean_speedup(forked),
        ]
        yield "| " + " | ".join(map(str, cells)) + " |"


def _agreement(found: dict[str, Any]) -> Iterator[str]:
    blocks, forks, syncs = found["blocks"], found["forks"], found["syncs"]
    yield "\n## Agreement of the two passes\n"
    yield (
        f"{found['num_answers']} answers. The first pass has {blocks['num_first']} blocks and "
        f"{syncs['num_first']} syncs in them, the second {blocks['num_second']} and "
        f"{syncs['num_second']}. Both fork {forks['num_both']} answers and leave "
        f"{forks['num_neither']} sequential; the first alone forks {forks['num_first_only']}, the "
        f"second alone {forks['num_second_only']}.\n"
    )
    yield "| what | measure | agreement |\n|---|---|---|"
    yield f"| blocks | F1, pairs that share most characters | {_value(blocks['overlap_f1'])} |"
    yield f"| blocks | F1, exactly the same ends | {_value(blocks['exact_f1'])} |"
    yield f"| blocks | F1 of characters that are in a block | {_value(blocks['character_f1'])} |"
    yield f"| fork or not | share of answers | {_value(forks['same'])} |"
    yield f"| fork or not | Cohen's kappa | {forks['kappa']:.2f} |"
    yield f"| syncs | share of answers with the same | {_value(syncs['same'])} |"
    yield f"| syncs | F1 | {_value(syncs['f1'])} |"
    yield f"| a sync or none | Cohen's kappa | {syncs['kappa']:.2f} |"


def _num_words(rows: Sequence[Row]) -> list[int]:
    return [len(row.record.document.plain_text.split()) for row in rows]


def _share(count: int, rows: Sequence[Row]) -> str:
    return f"{count} ({count / len(rows):.0%})"


def _counts(histogram: Counter[int]) -> str:
    return ", ".join(f"{number}: {count}" for number, count in sorted(histogram.items()))


def _mean_speedup(rows: Sequence[Row]) -> str:
    return f"{geometric_mean(row.speedup for row in rows):.2f}" if rows else "-"


def _value(interval: dict[str, float]) -> str:
    return f"{interval['mean']:.2f} ({interval['low']:.2f} to {interval['high']:.2f})"


# Agreement of two annotations. Neither is taken for the truth: every figure is the same with the
# two exchanged. White space at the ends of a block or before a sync is not seen.

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
            "same": as_dict(interval_of_mean([float(a == b) for a, b in syncs])),
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
        "num_both": sum(one and other for one, other in pairs),
        "num_first_only": sum(one and not other for one, other in pairs),
        "num_second_only": sum(other and not one for one, other in pairs),
        "num_neither": sum(not one and not other for one, other in pairs),
        "same": as_dict(interval_of_mean([float(one == other) for one, other in pairs])),
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


def main() -> None:
    """Rewrite the card below its mark."""
    text = CARD.read_text("utf-8")
    CARD.write_text(text.partition(MARK)[0] + MARK + figures(), encoding="utf-8")


if __name__ == "__main__":
    main()
