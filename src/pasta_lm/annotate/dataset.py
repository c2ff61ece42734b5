"""The data set of an annotation run, made from its journal alone: records, failures, a card.

Files appear whole or not at all, and can be made again at any time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

from pasta_lm.annotate.filters import speedup
from pasta_lm.annotate.log import FAILED, OK, PENDING, AnnotationLog, RowLog
from pasta_lm.annotate.recipe import MARKDOWN_RULE, AnnotateConfig
from pasta_lm.annotate.sources import ROWS_AT_ONCE
from pasta_lm.annotate.tally import Tally
from pasta_lm.data.records import Record, write_records
from pasta_lm.engines.scripted import words
from pasta_lm.errors import InputError, PastaError
from pasta_lm.journal import write_rows
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form

RECORDS, FAILURES, CARD = "annotated.jsonl", "failed.jsonl", "README.md"
PARQUET = "annotated.parquet"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of the answers that were kept; lengths in words."""

    num_answers: int
    num_blocks: int
    num_syncs: int
    share_sequential: float
    """Of answers without a block."""
    words_mean: float
    block_words_median: float
    speedup_all: float
    """Geometric mean of the theoretical speedup."""
    speedup_parallel: float
    """The same of answers with a block."""
    blocks: Counter[int]
    """How many answers have so many blocks."""


def write_set(config: AnnotateConfig, log_: AnnotationLog, tally: Tally) -> list[Path]:
    """Write the data set of a run, and return its files.

    Records and failures in the order of the source; Parquet where pyarrow is installed.

    Raises:
        PastaError: the disk does not take it; what stood there before is as it was.
    """
    folder = Path(config.output.folder)
    kept = [_record(row, config.source.label) for row in log_.in_order() if row.status == OK]
    failed = [_failure(row) for row in log_.in_order() if row.status == FAILED]
    pending = sum(row.status == PENDING for row in log_.in_order())
    text = card(config, tally, statistics([one.document for one in kept]), pending)
    try:
        part = folder / f"{RECORDS}.part"
        write_records(part, kept)
        part.replace(folder / RECORDS)
        write_rows(folder / FAILURES, failed)
        has_parquet = bool(kept) and find_spec("pyarrow") is not None
        if has_parquet:
            _write_parquet(folder / RECORDS, folder / PARQUET)
        else:  # one of an earlier run would no longer be the records
            (folder / PARQUET).unlink(missing_ok=True)
        part = folder / f"{CARD}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / CARD)
    except (OSError, InputError) as exc:
        raise PastaError(
            f"{folder} cannot be written: {exc}",
            hint="the journal is whole; make room and run the same command again",
        ) from exc
    names = [RECORDS, *([PARQUET] if has_parquet else []), FAILURES, CARD]
    return [folder / name for name in names]


def statistics(documents: Sequence[Document]) -> Statistics:
    """Return the figures of answers."""
    parallel = [one for one in documents if one.blocks]
    blocks = [len(words(block.plain_text)) for one in parallel for block in one.blocks]
    return Statistics(
        num_answers=len(documents),
        num_blocks=len(blocks),
        num_syncs=sum(one.num_syncs for one in documents),
        share_sequential=1 - len(parallel) / len(documents) if documents else 0.0,
        words_mean=mean(len(words(one.plain_text)) for one in documents) if documents else 0.0,
        block_words_median=median(blocks) if blocks else 0.0,
        speedup_all=_geometric_mean([speedup(one) for one in documents]),
        speedup_parallel=_geometric_mean([speedup(one) for one in parallel]),
        blocks=Counter(len(one.blocks) for one in documents),
    )


def card(config: AnnotateConfig, tally: Tally, found: Statistics, num_pending: int) -> str:
    """Return the data card: what it is, how it was made, its figures, what it is not."""
    reasons = [
        f"| {status}: {reason} | {count} |"
        for (status, reason), count in sorted(tally.reasons.items())
        if reason and count
    ]
    rows = [f"| {status} | {tally.num_rows[status]} |" for status in ("ok", "failed", "skipped")]
    hist = [f"| {number} | {count} |" for number, count in sorted(found.blocks.items())]
    pending = [f"| pending: the run was not finished | {num_pending} |"] if num_pending else []
    return "\n".join(
        [
            f"# {config.source.label}, annotated",
            "",
            f"Answers of {config.source.label} with what is independent in them marked in "
            "PASTA-LANG. Their text is unchanged: without tags, each is the original.",
            "",
            _whence(config),
            "",
            _how(config, tally),
            "",
            "| rows | |",
            "|---|---|",
            *rows,
            *pending,
            f"| total | {tally.num_ended + num_pending} |",
            *reasons,
            "",
            "| of the answers that were kept | |",
            "|---|---|",
            f"| blocks | {found.num_blocks} |",
            f"| syncs | {found.num_syncs} |",
            f"| share sequential | {found.share_sequential:.3f} |",
            f"| words in an answer, mean | {found.words_mean:.1f} |",
            f"| words in a block, median | {found.block_words_median:g} |",
            f"| theoretical speedup, geometric mean | {found.speedup_all:.3f} |",
            f"| the same where there are blocks | {found.speedup_parallel:.3f} |",
            "",
            "Lengths and speedups count words, and one for each piece of a tag; those of a "
            "model's tokens differ a little.",
            "",
            "| blocks in an answer | answers |",
            "|---|---|",
            *hist,
            "",
            "Made by pasta-lm. The licence of the source holds for its texts; the terms of the "
            "model hold for its tags.",
            "",
        ]
    )


def _whence(config: AnnotateConfig) -> str:
    source = config.source
    if source.hub is None:
        return f"Source: the file `{Path(source.file or '').name}`."
    revision = f"revision `{source.revision}`" if source.revision else "its newest revision then"
    return f"Source: `{source.hub}` of Hugging Face, split `{source.split}`, {revision}."


def _how(config: AnnotateConfig, tally: Tally) -> str:
    if config.annotator == MARKDOWN_RULE:
        return (
            "The marks are those of a **heuristic**: a hand-written rule that reads the layout of "
            "an answer (lists, headings, tables) and not its meaning. No model judged whether "
            "parts need one another, so parts that do are marked too. It serves to start a "
            "pipeline and as a rival, not as a teacher."
        )
    teacher = config.bound()["teacher"]
    cost = f", {tally.cost_usd:.2f} US dollars" if tally.has_prices else ""
    return (
        f"A language model marked them: `{teacher['model']}` at temperature "
        f"{teacher['temperature']:g}, prompt `{teacher['prompt']}`; {tally.num_replies} replies, "
        f"{tally.tokens.prompt} tokens in, {tally.tokens.completion} out{cost}. A copy that broke "
        "a rule went back at most twice and was given up then. Nobody has read them all."
    )


def _record(row: RowLog, source: str) -> Record:
    assert row.end is not None
    document = parse(row.end["annotated"], Form.ANNOTATOR)
    return Record(row.id, row.prompt, document, source)


def _failure(row: RowLog) -> dict[str, Any]:
    message = str(row.end["message"]) if row.end else ""
    said = [raw["choices"][0]["message"].get("content") for raw in row.replies]
    texts = {"prompt": row.prompt, "answer": row.answer, "replies": said}
    return {"id": row.id, "reason": row.reason, "message": message, **texts}


def _write_parquet(records: Path, path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    text = pyarrow.string()
    turn = pyarrow.struct([("role", text), ("content", text)])
    columns = {"id": text, "messages": pyarrow.list_(turn), "response": text, "annotated": text}
    schema = pyarrow.schema({**columns, "source": text})
    part = path.with_name(f"{path.name}.part")
    with records.open(encoding="utf-8", newline="\n") as lines:
        rows = map(json.loads, lines)
        with parquet.ParquetWriter(part, schema) as writer:
            while group := list(islice(rows, ROWS_AT_ONCE)):
                writer.write_table(pyarrow.Table.from_pylist(group, schema))
    part.replace(path)


def _geometric_mean(values: Sequence[float]) -> float:
    return exp(mean(map(log, values))) if values else 1.0
