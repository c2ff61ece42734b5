"""The journal of an annotation run, and the data set that is written from it.

The journal has a line for each row, each paid reply and each end of a row, on disk before it
counts; records, failures, sums and the data card are made from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Journal, Row, read_rows, write_rows, write_whole
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.learn.annotate.filters import Rejection, speedup
from pasta_lm.learn.annotate.own_answers import USABLE
from pasta_lm.learn.annotate.recipe import AnnotateConfig, SourceRow, digest
from pasta_lm.learn.annotate.teacher import MAX_RETURNS, read_prompt
from pasta_lm.learn.chat.client import ChatReply, read_reply
from pasta_lm.learn.chat.pool import Spending
from pasta_lm.learn.data.annotated import Record, write_records
from pasta_lm.view.scripted import words

OK, FAILED, SKIPPED, PENDING = "ok", "failed", "skipped", "pending"
NO_ANSWER = "no_answer"  # No reply came after all retries; another run asks again.
RECORDS, FAILURES, CARD = "annotated.jsonl", "failed.jsonl", "README.md"


@dataclass(slots=True)
class RowLog:
    """The history of one row of the source; ``annotated`` is the answer in annotator form."""

    index: int
    row: SourceRow
    replies: list[Mapping[str, Any]] = field(default_factory=list)
    status: str = PENDING
    reason: str = ""
    message: str = ""
    annotated: str | None = None
    num_unanswered: int = 0


class Tally:
    """Rows by status and reason, and the tokens, of all runs of one output folder."""

    def __init__(self) -> None:
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.spent = Spending()

    @property
    def num_rows(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for (status, _), count in self.reasons.items():
            totals[status] += count
        return +totals

    @property
    def num_ended(self) -> int:
        return self.reasons.total()


class AnnotationLog:
    """The journal of one output folder, its rows by their index in the source, and its sums.

    A PastaError says that the disk cannot be written; nothing of a call counts then.
    """

    def __init__(self, journal: Journal, progress: Callable[[Tally], None]) -> None:
        """Read the journal; ``progress`` is called after each row and each reply."""
        self.rows: dict[int, RowLog] = {}
        self.tally = Tally()
        self._journal, self._progress = journal, progress
        for line in journal.rows.values():
            self._count(line)

    def unfinished(self, index: int, row: SourceRow) -> RowLog | None:
        """Return a row's history unless it needs nothing more; a new row to skip is stored.

        An InputError says that the source had another row at this index before.
        """
        known = self.rows.get(index) or RowLog(index, row)
        old = known.row
        if (old.id, old.prompt, old.answer) != (row.id, row.prompt, row.answer):
            raise InputError(
                f"the source has changed: row {index + 1} was {old.id} and is {row.id}",
                hint="give the changed source a new output folder",
            )
        if row.skipped is not None:
            if index not in self.rows:
                self._store(known)
            return None
        return known if known.status == PENDING or known.reason == NO_ANSWER else None

    def store_reply(
        self, known: RowLog, reply: ChatReply, outcome: Document | Rejection | None
    ) -> None:
        name = f"reply/{known.index}/{len(known.replies) + 1}"
        line: Row = {"id": name, "index": known.index, "raw": reply.raw}
        self._store(known, line, *([] if outcome is None else [_end(known, outcome)]))

    def store_end(self, known: RowLog, outcome: Document | Rejection) -> None:
        self._store(known, _end(known, outcome))

    def store_unanswered(self, known: RowLog, message: str) -> None:
        """Store the reason why no reply came."""
        name = f"unanswered/{known.index}/{known.num_unanswered + 1}"
        self._store(known, {"id": name, "index": known.index, "message": message})

    def _store(self, known: RowLog, *lines: Row) -> None:
        index, row = known.index, known.row
        if index not in self.rows:
            texts = {"row_id": row.id, "prompt": row.prompt, "answer": row.answer}
            own = {"id": f"row/{index}", "index": index, **texts}
            own["digest"] = digest(f"{row.prompt}\0{row.answer}")
            lines = (own | {"skipped": row.skipped}, *lines)
        self._journal.append(lines)
        self.rows[index] = known
        for line in lines:
            self._count(line)
        self._progress(self.tally)

    def _count(self, line: Row) -> None:
        index, kind = line["index"], line["id"].partition("/")[0]
        if kind == "row" and index not in self.rows:
            source = SourceRow(line["row_id"], line["prompt"], line["answer"], line["skipped"])
            self.rows[index] = RowLog(index, source)
        row = self.rows[index]
        if kind == "reply":
            row.replies.append(line["raw"])
            self.tally.spent.count(read_reply(line["raw"]).tokens)
            return
        if row.status != PENDING:  # it was asked again
            self.tally.reasons[row.status, row.reason] -= 1
        if kind == "end":
            row.status, row.reason, row.message = line["status"], line["reason"], line["message"]
            row.annotated = line["annotated"]
        elif kind == "unanswered":
            row.num_unanswered += 1
            row.status, row.reason = FAILED, NO_ANSWER
        elif row.row.skipped is not None:
            row.status, row.reason = SKIPPED, row.row.skipped
        if row.status != PENDING:
            self.tally.reasons[row.status, row.reason] += 1


def _end(known: RowLog, outcome: Document | Rejection) -> Row:
    line: Row = {"id": f"end/{known.index}", "index": known.index}
    if isinstance(outcome, Document):
        kept = outcome.annotator_form()
        return line | {"status": OK, "reason": "", "message": "", "annotated": kept}
    why = {"reason": str(outcome.reason), "message": outcome.message}
    return line | {"status": FAILED, **why, "annotated": None}


def write_set(config: AnnotateConfig, log: AnnotationLog) -> list[Path]:
    """Write the data set of a run in the order of its source, and return its files.

    Where the disk is full, older files stay.
    """
    folder = Path(config.output.folder)
    rows = [row for _, row in sorted(log.rows.items())]
    thoughts: dict[str, str] = {}
    if config.answers is not None and config.answers.think:
        own = read_rows(Path(config.answers.out) / USABLE)
        thoughts = {row["id"]: row["reasoning"] for row in own if "reasoning" in row}
    label = config.rows.label
    kept = [
        Record(
            row.row.id,
            row.row.prompt,
            parse(row.annotated, Form.ANNOTATOR),
            label,
            thoughts.get(row.row.id),
        )
        for row in rows
        if row.annotated is not None
    ]
    failed = [_failure(row) for row in rows if row.status == FAILED]
    num_pending = sum(row.status == PENDING for row in rows)
    text = _card(config, log.tally, [record.document for record in kept], num_pending)
    try:
        write_records(folder / RECORDS, kept)
        write_rows(folder / FAILURES, failed)
        write_whole(folder / CARD, text.encode())
    except (OSError, InputError) as exc:
        raise PastaError(
            f"{folder} cannot be written: {cause(exc)}",
            hint="the journal is complete; make room and run the same command again",
        ) from exc
    return [folder / name for name in (RECORDS, FAILURES, CARD)]


def _failure(row: RowLog) -> dict[str, Any]:
    replies = [raw["choices"][0]["message"].get("content") for raw in row.replies]
    texts = {"prompt": row.row.prompt, "answer": row.row.answer, "replies": replies}
    return {"id": row.row.id, "reason": row.reason, "message": row.message, **texts}


def _card(
    config: AnnotateConfig, tally: Tally, documents: Sequence[Document], num_pending: int
) -> str:
    source = config.rows
    revision = f"revision `{source.revision}`" if source.revision else "its newest revision then"
    where = f"`{source.hub}` of Hugging Face, split `{source.split}`, {revision}"
    if source.hub is None:
        where = f"the file `{Path(source.file or '').name}`"
    template = files("pasta_lm.learn.annotate") / "card.md"
    return template.read_text("utf-8").format(
        source=source.label,
        where=where,
        method=_method(config, tally),
        rows=_table(_counts(tally, num_pending)),
        figures=_table(_figures(documents)),
        num_blocks=_table(sorted(Counter(len(document.blocks) for document in documents).items())),
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
    lengths = [len(words(block.plain_text)) for document in parallel for block in document.blocks]
    answer_words = [len(words(document.plain_text)) for document in documents]
    yield "blocks", len(lengths)
    yield "syncs", sum(document.num_syncs for document in documents)
    yield "share sequential", f"{1 - len(parallel) / len(documents) if documents else 0:.3f}"
    yield "words in an answer, mean", f"{mean(answer_words) if documents else 0:.1f}"
    yield "words in a block, median", f"{median(lengths) if lengths else 0:g}"
    mean_speedup = "theoretical speedup, geometric mean"
    for name, some in ((mean_speedup, documents), ("the same where there are blocks", parallel)):
        yield name, f"{geometric_mean(map(speedup, some)) if some else 1.0:.3f}"


def _table(rows: Iterable[tuple[object, object]]) -> str:
    return "\n".join(f"| {name} | {value} |" for name, value in rows)
