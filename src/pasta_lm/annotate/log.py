"""The journal of an annotation run, on disk before anything counts, and the sums made from it.

The journal has a line for each row, each paid reply and each end of a row. One process at a time
may write it, and only with the settings that it was begun with.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pasta_lm.annotate.sources import SourceRow
from pasta_lm.annotate.teacher import Outcome
from pasta_lm.errors import InputError, PastaError
from pasta_lm.journal import Journal, Row, held
from pasta_lm.recipe import check_same_settings
from pasta_lm.remote.budget import Prices, Spending, Tokens
from pasta_lm.remote.chat import ChatReply, read_reply

JOURNAL = "journal.jsonl"
LOCK = "lock"
OK, FAILED, SKIPPED, PENDING = "ok", "failed", "skipped", "pending"
NO_ANSWER = "no_answer"
"""No reply came after all retries; another run asks again."""


@dataclass(slots=True)
class RowLog:
    """The history of one row of the source."""

    index: int
    id: str
    prompt: str
    answer: str
    digest: str
    skipped: str | None
    replies: list[Mapping[str, Any]] = field(default_factory=list)
    """The raw replies."""
    end: Mapping[str, Any] | None = None
    num_unanswered: int = 0

    @property
    def status(self) -> str:
        """Return ``ok``, ``failed``, ``skipped`` or ``pending``."""
        if self.skipped is not None:
            return SKIPPED
        if self.end is not None:
            return str(self.end["status"])
        return FAILED if self.num_unanswered else PENDING

    @property
    def reason(self) -> str:
        """Return why the row failed or was skipped; empty otherwise."""
        if self.skipped is not None:
            return self.skipped
        if self.end is not None:
            return str(self.end["reason"])
        return NO_ANSWER if self.num_unanswered else ""


@contextmanager
def open_log(folder: Path, settings: Mapping[str, object]) -> Iterator[AnnotationLog]:
    """Hold the log of an output folder, which is made if it does not exist.

    Raises:
        UsageError: another process holds it, or it was begun with other settings.
        InputError: the journal is damaged before its last line.
        PastaError: the disk cannot be written.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(held(folder / LOCK))
        except OSError as exc:
            raise PastaError(f"{folder} cannot be written: {exc}") from exc
        yield AnnotationLog(folder, settings)


class AnnotationLog:
    """The journal of one output folder."""

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        """Read or begin a journal; see ``open_log``."""
        self.rows: dict[int, RowLog] = {}
        self._journal = Journal(folder / JOURNAL)
        begun = self._journal.rows.get("settings")
        if begun is None:
            self._journal.append([{"id": "settings", "settings": settings}])
        else:
            check_same_settings(folder, begun["settings"], settings)
        for line in self._journal.rows.values():
            self._note(line)

    def known(self, index: int, row: SourceRow) -> RowLog | None:
        """Return what is on disk about a row; None: nothing yet.

        Raises:
            InputError: the source had another row at this index when the journal was begun.
        """
        found = self.rows.get(index)
        if found is not None and (found.id, found.digest) != (row.id, _digest(row)):
            raise InputError(
                f"the source has changed: row {index + 1} was {found.id} and is {row.id}",
                hint="give the changed source a new output folder",
            )
        return found

    def skip(self, index: int, row: SourceRow) -> None:
        """Store that a row cannot be annotated, and why."""
        self._append(index, row)

    def reply(
        self, index: int, row: SourceRow, raw: Mapping[str, Any], outcome: Outcome | None
    ) -> None:
        """Store a reply, and the end of the row if this is its last reply.

        Raises:
            PastaError: the disk cannot be written; nothing of it counts.
        """
        number = len(self.rows[index].replies) + 1 if index in self.rows else 1
        line = {"id": f"reply/{index}/{number}", "index": index, "raw": raw}
        self._append(index, row, line, *([_end_line(index, outcome)] if outcome else []))

    def end(self, index: int, row: SourceRow, outcome: Outcome) -> None:
        """Store the end of a row that needed no further reply."""
        self._append(index, row, _end_line(index, outcome))

    def unanswered(self, index: int, row: SourceRow, message: str) -> None:
        """Store that no reply came."""
        number = self.rows[index].num_unanswered + 1 if index in self.rows else 1
        line = {"id": f"unanswered/{index}/{number}", "index": index, "message": message}
        self._append(index, row, line)

    def in_order(self) -> Iterator[RowLog]:
        """Yield the rows in the order of the source."""
        for index in sorted(self.rows):
            yield self.rows[index]

    def _append(self, index: int, row: SourceRow, *lines: Row) -> None:
        """Append lines, preceded by the row itself if it is new."""
        new = [] if index in self.rows else [_row_line(index, row)]
        self._journal.append([*new, *lines])
        for line in (*new, *lines):
            self._note(line)

    def _note(self, line: Row) -> None:
        kind, index = line["id"].partition("/")[0], line.get("index", -1)
        if kind == "row":
            keys = ("index", "prompt", "answer", "digest", "skipped")
            self.rows[index] = RowLog(id=line["row_id"], **{key: line[key] for key in keys})
        elif kind == "reply":
            self.rows[index].replies.append(line["raw"])
        elif kind == "end":
            self.rows[index].end = line
        elif kind == "unanswered":
            self.rows[index].num_unanswered += 1


class Tally:
    """Rows by their status, and the spending, of all runs of one output folder."""

    def __init__(self, prices: Prices) -> None:
        """Begin with nothing."""
        self.num_rows: Counter[str] = Counter()
        """By status: ``ok``, ``failed``, ``skipped``."""
        self.reasons: Counter[tuple[str, str]] = Counter()
        """By status and reason."""
        self.spent = Spending(prices)
        self._counted: dict[int, tuple[str, str]] = {}

    @property
    def num_ended(self) -> int:
        """Return the number of rows that are ok, failed or skipped."""
        return self.num_rows.total()

    def count_row(self, row: RowLog) -> None:
        """Count a row of an earlier run, with its replies."""
        for raw in row.replies:
            self.count_reply(read_reply(raw))
        if row.status != PENDING:
            self.count_end(row)

    def count_reply(self, reply: ChatReply) -> None:
        """Count a reply that is on disk."""
        self.spent.count(Tokens(reply.prompt_tokens, reply.completion_tokens))

    def count_end(self, row: RowLog) -> None:
        """Count the end of a row; of a row that was asked again, its last end counts."""
        before = self._counted.get(row.index)
        if before is not None:
            self.num_rows[before[0]] -= 1
            self.reasons[before] -= 1
        self._counted[row.index] = row.status, row.reason
        self.num_rows[row.status] += 1
        self.reasons[row.status, row.reason] += 1


def _row_line(index: int, row: SourceRow) -> Row:
    return {
        "id": f"row/{index}",
        "index": index,
        "row_id": row.id,
        "prompt": row.prompt,
        "answer": row.answer,
        "digest": _digest(row),
        "skipped": row.skipped,
    }


def _end_line(index: int, outcome: Outcome) -> Row:
    document = outcome.document
    return {
        "id": f"end/{index}",
        "index": index,
        "status": FAILED if document is None else OK,
        "reason": str(outcome.reason),
        "message": outcome.message,
        "annotated": None if document is None else document.annotator_form(),
    }


def _digest(row: SourceRow) -> str:
    return hashlib.sha256(f"{row.prompt}\0{row.answer}".encode()).hexdigest()[:16]
