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

from pasta_lm.engines.annotated import Record, read_records
from pasta_lm.engines.scripted import words
from pasta_lm.evaluate.agreement import agreement, paired
from pasta_lm.evaluate.agreement import rows as agreement_rows
from pasta_lm.interpreter.speed import document_speedup

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
    return paired(read_records(ROWS), read_records(SECOND_PASS))


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
    yield from ("| " + " | ".join(row) + " |" for row in agreement_rows(found))


def _num_words(rows: Sequence[Row]) -> list[int]:
    return [len(row.record.document.plain_text.split()) for row in rows]


def _share(count: int, rows: Sequence[Row]) -> str:
    return f"{count} ({count / len(rows):.0%})"


def _counts(histogram: Counter[int]) -> str:
    return ", ".join(f"{number}: {count}" for number, count in sorted(histogram.items()))


def _mean_speedup(rows: Sequence[Row]) -> str:
    return f"{geometric_mean(row.speedup for row in rows):.2f}" if rows else "-"


def main() -> None:
    """Rewrite the card below its mark."""
    text = CARD.read_text("utf-8")
    CARD.write_text(text.partition(MARK)[0] + MARK + figures(), encoding="utf-8")


if __name__ == "__main__":
    main()
