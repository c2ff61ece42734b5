"""The journal of an annotation run, on disk before anything counts, and the sums made from it.

The journal has a line for each row, each paid reply and each end of a row.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pasta_lm.errors import InputError
from pasta_lm.journal import Journal, Row
from pasta_lm.learn.annotate.sources import SourceRow
from pasta_lm.learn.annotate.teacher import RowOutcome
from pasta_lm.learn.chat.client import Prices, TokenCounts
from pasta_lm.learn.chat.pool import Spending, stored_tokens

OK, FAILED, SKIPPED, PENDING = "ok", "failed", "skipped", "pending"
NO_ANSWER = "no_answer"
"""No reply came after all retries; another run asks again."""


@dataclass(slots=True)
class RowLog:
    """The history of one row of the source."""

    row: SourceRow
    replies: list[Mapping[str, Any]] = field(default_factory=list)
    status: str = PENDING
    reason: str = ""
    """Why it failed or was skipped."""
    message: str = ""
    annotated: str | None = None
    """In annotator form, if its status is ``ok``."""
    num_unanswered: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether no run asks about this row again."""
        return self.status != PENDING and self.reason != NO_ANSWER


class Tally:
    """Rows by their status, and the spending, of all runs of one output folder."""

    def __init__(self, prices: Prices) -> None:
        """Begin with nothing."""
        self.reasons: Counter[tuple[str, str]] = Counter()
        """Rows by status and reason."""
        self.spent = Spending(prices)

    @property
    def num_rows(self) -> Counter[str]:
        """Return the number of rows that are ok, failed or skipped."""
        totals: Counter[str] = Counter()
        for (status, _), count in self.reasons.items():
            totals[status] += count
        return +totals

    @property
    def num_ended(self) -> int:
        """Return the number of rows that have an end."""
        return self.reasons.total()


class AnnotationLog:
    """The journal of one output folder, its rows by their index in the source, and its sums."""

    def __init__(self, journal: Journal, prices: Prices) -> None:
        """Read a journal."""
        self.rows: dict[int, RowLog] = {}
        self.tally = Tally(prices)
        self._journal = journal
        for line in journal.rows.values():
            self._note(line)

    def known(self, index: int, row: SourceRow) -> RowLog | None:
        """Return the history of a row; None: nothing is stored yet.

        Raises:
            InputError: the source had another row at this index when the journal was begun.
        """
        known = self.rows.get(index)
        if known is not None and (known.row.id, _digest(known.row)) != (row.id, _digest(row)):
            raise InputError(
                f"the source has changed: row {index + 1} was {known.row.id} and is {row.id}",
                hint="give the changed source a new output folder",
            )
        return known

    def store_skip(self, index: int, row: SourceRow) -> None:
        """Store a row that is skipped; errors as those of ``store_end``."""
        self._append(index, row)

    def store_reply(
        self,
        index: int,
        row: SourceRow,
        raw: Mapping[str, Any],
        tokens: TokenCounts,
        outcome: RowOutcome | None,
    ) -> None:
        """Store a raw reply, and the end of its row if it has one; errors as ``store_end``'s.

        ``tokens`` are stored if the server reports none.
        """
        known = self.rows.get(index)
        number = len(known.replies) + 1 if known else 1
        line: Row = {"id": f"reply/{index}/{number}", "index": index, "raw": raw}
        if not raw.get("usage"):
            line["tokens"] = tokens
        self._append(index, row, line, *([] if outcome is None else [_end_line(index, outcome)]))

    def store_end(self, index: int, row: SourceRow, outcome: RowOutcome) -> None:
        """Store the end of a row.

        Raises:
            PastaError: the disk cannot be written; nothing of it counts.
        """
        self._append(index, row, _end_line(index, outcome))

    def store_unanswered(self, index: int, row: SourceRow, message: str) -> None:
        """Store the reason why no reply came; errors as those of ``store_end``."""
        known = self.rows.get(index)
        name = f"unanswered/{index}/{known.num_unanswered + 1 if known else 1}"
        self._append(index, row, {"id": name, "index": index, "message": message})

    def _append(self, index: int, row: SourceRow, *lines: Row) -> None:
        new = [*([] if index in self.rows else [_row_line(index, row)]), *lines]
        self._journal.append(new)
        for line in new:
            self._note(line)

    def _note(self, line: Row) -> None:
        """Update the row of a line, and the sums."""
        kind = line["id"].partition("/")[0]
        if kind == "row":
            source = SourceRow(line["row_id"], line["prompt"], line["answer"], line["skipped"])
            self.rows[line["index"]] = RowLog(source)
        row = self.rows[line["index"]]
        if kind == "reply":
            row.replies.append(line["raw"])
            self.tally.spent.count(stored_tokens(line, line["raw"]))
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


def _end_line(index: int, outcome: RowOutcome) -> Row:
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
