"""Write the data set of an annotation run from its journal: records, failures, a data card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

from pasta_lm.engines.scripted import words
from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import write_rows, write_whole
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.learn.annotate.filters import speedup
from pasta_lm.learn.annotate.log import FAILED, OK, PENDING, SKIPPED, AnnotationLog, RowLog, Tally
from pasta_lm.learn.annotate.recipe import AnnotateConfig
from pasta_lm.learn.annotate.sources import ROWS_AT_ONCE
from pasta_lm.learn.annotate.teacher import MAX_RETURNS, read_prompt
from pasta_lm.models.annotated import Record, write_records

RECORDS, FAILURES, CARD = "annotated.jsonl", "failed.jsonl", "README.md"
PARQUET = "annotated.parquet"


def write_set(
    config: AnnotateConfig, journal: AnnotationLog, method: Mapping[str, object] | None = None
) -> list[Path]:
    """Write the data set of a run, and return its files.

    Records and failures are in the order of the source. Parquet is written if pyarrow is installed.

    Raises:
        PastaError: the disk cannot be written; older files stay as they were.
    """
    folder = Path(config.output.folder)
    rows = [journal.rows[index] for index in sorted(journal.rows)]
    kept = [_record(row, config.rows.label) for row in rows if row.status == OK]
    failed = [_failure(row) for row in rows if row.status == FAILED]
    num_pending = sum(row.status == PENDING for row in rows)
    how = _method(config, journal.tally) if method is None else _other_method(method)
    text = card(config, how, journal.tally, [record.document for record in kept], num_pending)
    try:
        part = folder / f"{RECORDS}.part"
        write_records(part, kept)
        part.replace(folder / RECORDS)
        write_rows(folder / FAILURES, failed)
        has_parquet = bool(kept) and find_spec("pyarrow") is not None
        if has_parquet:
            _write_parquet(folder / RECORDS, folder / PARQUET)
        else:  # one of an earlier run would no longer have the same records
            (folder / PARQUET).unlink(missing_ok=True)
        write_whole(folder / CARD, text.encode())
    except (OSError, InputError) as exc:
        raise PastaError(
            f"{folder} cannot be written: {cause(exc)}",
            hint="the journal is complete; make room and run the same command again",
        ) from exc
    names = [RECORDS, *([PARQUET] if has_parquet else []), FAILURES, CARD]
    return [folder / name for name in names]


def card(
    config: AnnotateConfig,
    method: str,
    tally: Tally,
    documents: Sequence[Document],
    num_pending: int,
) -> str:
    """Return the data card: the contents, how they were made, and figures."""
    source = config.rows
    where = f"the file `{Path(source.file or '').name}`"
    if source.hub is not None:
        where = f"`{source.hub}` of Hugging Face, split `{source.split}`, "
        where += f"revision `{source.revision}`" if source.revision else "its newest revision then"
    num_blocks = sorted(Counter(len(document.blocks) for document in documents).items())
    return (
        (files("pasta_lm.learn.annotate") / "card.md")
        .read_text("utf-8")
        .format(
            source=source.label,
            where=where,
            method=method,
            rows=_table(_counts(tally, num_pending)),
            figures=_table(_figures(documents)),
            num_blocks=_table(num_blocks),
        )
    )


def _method(config: AnnotateConfig, tally: Tally) -> str:
    if config.teacher is None:
        return (
            "The tags come from a **heuristic**: a hand-written rule that reads the layout of an\n"
            "answer (lists, headings, tables) and the words of its question, not its meaning. No\n"
            "model judged whether parts depend on one another, so some dependent parts are marked\n"
            "too. Use it to start a pipeline or as a baseline, not as a teacher."
        )
    teacher, spent = config.teacher, tally.spent
    return (
        f"A language model wrote the tags: `{teacher.model}` at temperature\n"
        f"{teacher.temperature:g}, prompt `{read_prompt().label}`; {spent.num_replies} replies,\n"
        f"{spent}. A copy that broke a rule was returned\n"
        f"at most {MAX_RETURNS} times. No person has read all of them."
    )


def _other_method(method: Mapping[str, object]) -> str:
    settings = "; ".join(f"**{name}**: `{json.dumps(value)}`" for name, value in method.items())
    return f"The tags come from {settings}.\nNo person has read all of them."


def _counts(tally: Tally, num_pending: int) -> Iterator[tuple[str, int]]:
    for status in (OK, FAILED, SKIPPED):
        yield status, tally.num_rows[status]
    if num_pending:
        yield "pending: the run was not finished", num_pending
    yield "total", tally.num_ended + num_pending
    for (status, reason), count in sorted(tally.reasons.items()):
        if reason and count:
            yield f"{status}: {reason}", count


def _figures(documents: Sequence[Document]) -> Iterator[tuple[str, object]]:
    parallel = [document for document in documents if document.blocks]
    blocks = [block for document in parallel for block in document.blocks]
    lengths = [len(words(block.plain_text)) for block in blocks]
    yield "blocks", len(lengths)
    yield "syncs", sum(document.num_syncs for document in documents)
    yield "share sequential", f"{1 - len(parallel) / len(documents) if documents else 0:.3f}"
    answer_words = [len(words(document.plain_text)) for document in documents]
    yield "words in an answer, mean", f"{mean(answer_words) if documents else 0:.1f}"
    yield "words in a block, median", f"{median(lengths) if lengths else 0:g}"
    yield "theoretical speedup, geometric mean", _mean_speedup(documents)
    yield "the same where there are blocks", _mean_speedup(parallel)


def _mean_speedup(documents: Sequence[Document]) -> str:
    return f"{geometric_mean(map(speedup, documents)) if documents else 1.0:.3f}"


def _table(rows: Iterable[tuple[object, object]]) -> str:
    return "\n".join(f"| {name} | {value} |" for name, value in rows)


def _record(row: RowLog, source: str) -> Record:
    assert row.annotated is not None
    return Record(row.row.id, row.row.prompt, parse(row.annotated, Form.ANNOTATOR), source)


def _failure(row: RowLog) -> dict[str, Any]:
    replies = [raw["choices"][0]["message"].get("content") for raw in row.replies]
    texts = {"prompt": row.row.prompt, "answer": row.row.answer, "replies": replies}
    return {"id": row.row.id, "reason": row.reason, "message": row.message, **texts}


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
