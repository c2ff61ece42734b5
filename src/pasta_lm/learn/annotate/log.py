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

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Journal, Row, held
from pasta_lm.learn.annotate.sources import SourceRow
from pasta_lm.learn.annotate.teacher import Outcome
from pasta_lm.learn.chat.budget import Prices, Spending, Tokens
from pasta_lm.recipe import check_same_settings

JOURNAL = "journal.jsonl"
LOCK = "lock"
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
        found: Counter[str] = Counter()
        for (status, _), count in self.reasons.items():
            found[status] += count
        return +found

    @property
    def num_ended(self) -> int:
        """Return the number of rows that have an end."""
        return self.reasons.total()


class AnnotationLog:
    """The journal of one output folder, its rows by their index in the source, and its sums."""

    def __init__(self, folder: Path, settings: Mapping[str, object], prices: Prices) -> None:
        """Read or begin a journal; see ``open_log``."""
        self.rows: dict[int, RowLog] = {}
        self.tally = Tally(prices)
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
        if found is not None and (found.row.id, _digest(found.row)) != (row.id, _digest(row)):
            raise InputError(
                f"the source has changed: row {index + 1} was {found.row.id} and is {row.id}",
                hint="give the changed source a new output folder",
            )
        return found

    def store(
        self,
        index: int,
        row: SourceRow,
        *,
        reply: Mapping[str, Any] | None = None,
        outcome: Outcome | None = None,
        unanswered: str | None = None,
    ) -> None:
        """Store a row with a raw reply, its end, or the reason why no reply came.

        Raises:
            PastaError: the disk cannot be written; nothing of it counts.
        """
        known = self.rows.get(index)
        lines = [] if known else [_row_line(index, row)]
        if reply is not None:
            number = len(known.replies) + 1 if known else 1
            lines.append({"id": f"reply/{index}/{number}", "index": index, "raw": reply})
        if outcome is not None:
            lines.append(_end_line(index, outcome))
        if unanswered is not None:
            number = known.num_unanswered + 1 if known else 1
            name = f"unanswered/{index}/{number}"
            lines.append({"id": name, "index": index, "message": unanswered})
        self._journal.append(lines)
        for line in lines:
            self._note(line)

    def _note(self, line: Row) -> None:
        """Update the row of a line, and the sums."""
        kind = line["id"].partition("/")[0]
        if kind == "settings":
            return
        if kind == "row":
            source = SourceRow(line["row_id"], line["prompt"], line["answer"], line["skipped"])
            self.rows[line["index"]] = RowLog(source)
        row = self.rows[line["index"]]
        if kind == "reply":
            row.replies.append(line["raw"])
            usage = line["raw"].get("usage") or {}
            tokens = (int(usage.get(f"{one}_tokens") or 0) for one in ("prompt", "completion"))
            self.tally.spent.count(Tokens(*tokens))
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


@contextmanager
def open_log(
    folder: Path, settings: Mapping[str, object], prices: Prices
) -> Iterator[AnnotationLog]:
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
            raise PastaError(f"{folder} cannot be written: {cause(exc)}") from exc
        yield AnnotationLog(folder, settings, prices)


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
