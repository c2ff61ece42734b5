"""Figures of the annotated corpora's cards, and the ids that no training reads.

``pasta-lab corpora`` rewrites what stands below the mark of each card and each ``held_out.txt``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import geometric_mean, mean, median, quantiles
from typing import Any, NamedTuple

from pasta_lab.evaluate.agreement import compared
from pasta_lab.evaluate.agreement import rows as agreement_rows
from pasta_lm.journal import read_lines
from pasta_lm.learn.annotate.filters import speedup
from pasta_lm.learn.data.annotated import Record, read_records

CORPORA = Path(__file__).parents[2] / "corpora"
STARTER, OWN, INSTRUCTIONS, WRITTEN = (
    CORPORA / name for name in ("starter", "own_answers", "instructions", "written_answers")
)
ROWS, SECOND_PASS = STARTER / "starter.jsonl", STARTER / "second_pass.jsonl"
OWN_ROWS, WRITTEN_ROWS = OWN / "own_answers.jsonl", WRITTEN / "written_answers.jsonl"
READING, SECOND_READING = OWN / "starter_reading.jsonl", OWN / "second_reading.jsonl"
NO_HINT = "here, drawn by chance from those without a hint, against a second reading"
MARK = "<!-- below: pasta-lab corpora -->\n"


class Row(NamedTuple):
    """A record with all fields of its row."""

    fields: dict[str, Any]
    record: Record
    speedup: float
    """Theoretical, one token for a word and for a piece of a tag."""

    @property
    def num_blocks(self) -> int:
        """Return how many blocks the answer has."""
        return len(self.record.document.blocks)


def read(path: Path = ROWS) -> list[Row]:
    """Return the rows of a data set."""
    return [
        Row(json.loads(line), record, speedup(record.document))
        for line, record in zip(read_lines(path), read_records(path), strict=True)
    ]


def card(folder: Path) -> str:
    """Return the generated part of a corpus's card."""
    parts: list[Iterator[str]]
    if folder == STARTER:
        rows, figures = read(ROWS), compared(ROWS, SECOND_PASS)
        parts = [_statistics(rows, "domain"), _groups(rows, "domain"), _agreement(figures)]
    else:
        rows = read(OWN_ROWS if folder == OWN else WRITTEN_ROWS)
        parts = [_statistics(rows, "shape"), _groups(rows, "parts"), _groups(rows, "shape")]
    if folder == OWN:
        parts = [_left_out(len(rows)), *parts, _reading()]
    return "\n".join(chain(*parts)).rstrip() + "\n"


def _reading() -> Iterator[str]:
    yield "\n## Agreement of the reading\n"
    for first, second, of in (
        (READING, SECOND_PASS, "of the starter, read without their tags, against its second pass"),
        (OWN_ROWS, SECOND_READING, NO_HINT),
    ):
        figures = compared(first, second)
        blocks, syncs = figures["blocks"], figures["syncs"]
        yield (
            f"{figures['num_answers']} answers {of}: {blocks['num_first']} and "
            f"{blocks['num_second']} blocks, "
            f"{syncs['num_first']} and {syncs['num_second']} syncs.\n"
        )
        yield from _agreement_table(figures)
        yield ""


def _left_out(num_rows: int) -> Iterator[str]:
    counts = json.loads((OWN / "own_answers.counts.json").read_text("utf-8"))
    rules, reader = counts["rules"], counts["reader"]
    yield "\n## What was left out\n"
    yield "| answers | left out by | because | number |\n|---|---|---|---|"
    yield f"| sampled | | | {counts['sampled']:,} |"
    yield from (f"| | rules | `{name}` | {count:,} |" for name, count in rules.items())
    yield from (f"| | the reader | {name} | {count:,} |" for name, count in reader.items())
    yield f"| usable, but not read | | | {counts['not_read']:,} |"
    yield f"| another answer to the same instruction is here | | | {counts['twice']:,} |"
    yield f"| in the data set | | | {num_rows:,} |"


def _statistics(rows: Sequence[Row], group: str) -> Iterator[str]:
    documents = [row.record.document for row in rows]
    forked = [row for row in rows if row.num_blocks]
    blocks = [len(block.plain_text.split()) for document in documents for block in document.blocks]
    syncs = [document.num_syncs for document in documents]
    tenths = quantiles(blocks, n=10, method="inclusive")
    histogram = Counter(row.num_blocks for row in forked)
    yield "\n## Statistics\n"
    yield f"{len(rows):,} rows in {len({row.fields[group] for row in rows})} {group}s.\n"
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


def _groups(rows: Sequence[Row], group: str) -> Iterator[str]:
    yield f"\n| {group} | rows | sequential | with a sync | blocks | speedup | … with blocks |"
    yield "|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(row.fields[group] for row in rows):
        chosen = [row for row in rows if row.fields[group] == name]
        forked = [row for row in chosen if row.num_blocks]
        cells = [
            name,
            len(chosen),
            len(chosen) - len(forked),
            sum(row.record.document.num_syncs > 0 for row in chosen),
            sum(row.num_blocks for row in chosen),
            _mean_speedup(chosen),
            _mean_speedup(forked),
        ]
        yield "| " + " | ".join(map(str, cells)) + " |"


def _agreement(figures: dict[str, Any]) -> Iterator[str]:
    blocks, forks, syncs = figures["blocks"], figures["forks"], figures["syncs"]
    yield "\n## Agreement of the two passes\n"
    yield (
        f"{figures['num_answers']} answers. The first pass has {blocks['num_first']} blocks and "
        f"{syncs['num_first']} syncs in them, the second {blocks['num_second']} and "
        f"{syncs['num_second']}. Both fork {forks['num_both']} answers and leave "
        f"{forks['num_neither']} sequential; the first alone forks {forks['num_first_only']}, the "
        f"second alone {forks['num_second_only']}.\n"
    )
    yield from _agreement_table(figures)


def _agreement_table(figures: dict[str, Any]) -> Iterator[str]:
    yield "| what | measure | agreement |\n|---|---|---|"
    yield from ("| " + " | ".join(row) + " |" for row in agreement_rows(figures))


def _num_words(rows: Sequence[Row]) -> list[int]:
    return [len(row.record.document.plain_text.split()) for row in rows]


def _share(count: int, rows: Sequence[Row]) -> str:
    return f"{count} ({count / len(rows):.0%})"


def _counts(histogram: Counter[int]) -> str:
    return ", ".join(f"{number}: {count}" for number, count in sorted(histogram.items()))


def _mean_speedup(rows: Sequence[Row]) -> str:
    return f"{geometric_mean(row.speedup for row in rows):.2f}" if rows else "-"


SEED = 18
NUM_HELD_OUT = 100
"""Held-out answers of the starter, and held-out instructions of each kind."""


def first_by_hash(ids: Sequence[str], count: int) -> list[str]:
    """Return the ids of least rank, sorted by name.

    The rank is a hash, so the choice depends neither on the order of a file nor on deleted rows.
    """
    ranked = sorted(ids, key=lambda name: hashlib.sha256(f"{SEED}:{name}".encode()).digest())
    return sorted(ranked[:count])


def held_out_starter() -> list[str]:
    """Return held-out ids of the starter; each has a second annotation."""
    return first_by_hash([record.id for record in read_records(SECOND_PASS)], NUM_HELD_OUT)


def held_out_instructions() -> list[str]:
    """Return held-out ids of the instructions: as many that ask for one part as for several."""
    rows = [json.loads(line) for line in read_lines(INSTRUCTIONS / "instructions.jsonl")]
    groups = [[row["id"] for row in rows if row["parts"] == kind] for kind in ("one", "several")]
    return sorted(name for ids in groups for name in first_by_hash(ids, NUM_HELD_OUT))


def rewrite() -> None:
    """Rewrite the cards below their marks, and the held-out ids."""
    for folder in (STARTER, OWN, WRITTEN):
        page = folder / "README.md"
        above = page.read_text("utf-8").partition(MARK)[0]
        page.write_text(above + MARK + card(folder), encoding="utf-8")
    for folder, ids in ((STARTER, held_out_starter()), (INSTRUCTIONS, held_out_instructions())):
        (folder / "held_out.txt").write_text("\n".join(ids) + "\n", encoding="utf-8")
