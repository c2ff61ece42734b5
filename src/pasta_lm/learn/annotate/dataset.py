"""The journal of an annotation run, and the data set that is written from it.

The journal has a line for each row, each paid reply and each end of a row, on disk before it
counts; records, failures and sums are made from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Journal, Row, write_rows
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.learn.annotate.filters import Rejection
from pasta_lm.learn.annotate.own_answers import digest
from pasta_lm.learn.annotate.recipe import AnnotateConfig, SourceRow
from pasta_lm.learn.chat.client import ChatReply, read_reply
from pasta_lm.learn.chat.pool import Spending
from pasta_lm.learn.data.annotated import write_records

OK, FAILED, SKIPPED, PENDING = "ok", "failed", "skipped", "pending"
NO_ANSWER = "no_answer"  # No reply came after all retries; another run asks again.
RECORDS, FAILURES = "annotated.jsonl", "failed.jsonl"


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
        if replace(old, skipped=row.skipped) != row:
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
            texts: Row = {"row_id": row.id, "prompt": row.prompt, "answer": row.answer}
            more = {"turns": row.turns, "reasoning": row.reasoning}
            texts |= {key: value for key, value in more.items() if value}
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
            texts = line["row_id"], line["prompt"], line["answer"], line["skipped"]
            shown = tuple(line.get("turns", ()))
            self.rows[index] = RowLog(index, SourceRow(*texts, shown, line.get("reasoning")))
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
    kept = [
        row.row.record(parse(row.annotated, Form.ANNOTATOR), config.rows.label)
        for row in rows
        if row.annotated is not None
    ]
    failed = [_failure(row) for row in rows if row.status == FAILED]
    try:
        write_records(folder / RECORDS, kept)
        write_rows(folder / FAILURES, failed)
    except (OSError, InputError) as exc:
        raise PastaError(
            f"{folder} cannot be written: {cause(exc)}",
            hint="the journal is complete; make room and run the same command again",
        ) from exc
    return [folder / name for name in (RECORDS, FAILURES)]


def _failure(row: RowLog) -> dict[str, Any]:
    replies = [read_reply(raw).text or None for raw in row.replies]
    texts = {"prompt": row.row.prompt, "answer": row.row.answer, "replies": replies}
    return {"id": row.row.id, "reason": row.reason, "message": row.message, **texts}
