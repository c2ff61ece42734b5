"""All that is known of one annotation run, on disk before it counts.

A journal with a line for each row taken up, each paid reply and each end. One process at a time
may hold it, and only with the settings that it was begun with. Sums and files are made from it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pasta_lm.annotate.sources import SourceRow
from pasta_lm.annotate.teacher import Outcome
from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.journal import Journal, Row, hold

JOURNAL = "journal.jsonl"
LOCK = "lock"
OK, FAILED, SKIPPED, PENDING = "ok", "failed", "skipped", "pending"
NO_ANSWER = "no_answer"
"""Of a row for which no reply came after all tries; another run asks again."""


@dataclass(slots=True)
class RowLog:
    """What has happened to one row."""

    index: int
    """Its place in the source."""
    id: str
    prompt: str
    answer: str
    digest: str
    skipped: str | None
    replies: list[Mapping[str, Any]] = field(default_factory=list)
    """The bodies that came, paid."""
    end: Mapping[str, Any] | None = None
    num_unanswered: int = 0

    @property
    def status(self) -> str:
        """Return one of ``ok``, ``failed``, ``skipped`` and ``pending``."""
        if self.skipped is not None:
            return SKIPPED
        if self.end is not None:
            return str(self.end["status"])
        return FAILED if self.num_unanswered else PENDING

    @property
    def reason(self) -> str:
        """Return why it failed or was skipped; empty otherwise."""
        if self.skipped is not None:
            return self.skipped
        if self.end is not None:
            return str(self.end["reason"])
        return NO_ANSWER if self.num_unanswered else ""


class AnnotationLog:
    """The journal of one output folder, held while its ``with`` block lasts."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open or begin a journal.

        Args:
            folder: Of the output; made if it is not there.
            settings: What the run is bound to.

        Raises:
            UsageError: another process holds it, or it was begun with other settings.
            InputError: the journal is damaged before its last line.
            PastaError: the disk does not take it.
        """
        self.rows: dict[int, RowLog] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = hold(folder / LOCK)
        except OSError as exc:
            raise PastaError(f"{folder} cannot be written: {exc}") from exc
        try:
            self._journal = Journal(folder / JOURNAL)
            self._bind(folder, json.loads(json.dumps(settings)))
            for line in self._journal.rows.values():
                self._note(line)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the log itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let another process have it."""
        self.close()

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._lock)

    def known(self, index: int, row: SourceRow) -> RowLog | None:
        """Return what is on disk of the row at this place; None: nothing yet.

        Raises:
            InputError: another row stood there when the journal was begun.
        """
        found = self.rows.get(index)
        if found is not None and (found.id, found.digest) != (row.id, _digest(row)):
            raise InputError(
                f"the source has changed: row {index + 1} was {found.id} and is {row.id}",
                hint="give the changed source a new output folder",
            )
        return found

    def skip(self, index: int, row: SourceRow) -> None:
        """Write down that a row cannot be annotated, and why."""
        self._append(_row_line(index, row))

    def reply(
        self, index: int, row: SourceRow, raw: Mapping[str, Any], outcome: Outcome | None
    ) -> None:
        """Write down a reply, with the row if it is its first and the end if it is its last.

        Raises:
            PastaError: the disk did not take it; nothing of it counts.
        """
        known = self.rows.get(index)
        number = len(known.replies) + 1 if known else 1
        lines = [] if known else [_row_line(index, row)]
        lines.append({"id": f"reply/{index}/{number}", "index": index, "raw": raw})
        self._append(*lines, *([_end_line(index, outcome)] if outcome else []))

    def end(self, index: int, row: SourceRow, outcome: Outcome) -> None:
        """Write down how a row ended without a further reply."""
        self._append(*self._row(index, row), _end_line(index, outcome))

    def unanswered(self, index: int, row: SourceRow, message: str) -> None:
        """Write down that no reply came."""
        known = self.rows.get(index)
        number = known.num_unanswered + 1 if known else 1
        line = {"id": f"unanswered/{index}/{number}", "index": index, "message": message}
        self._append(*self._row(index, row), line)

    def in_order(self) -> Iterator[RowLog]:
        """Yield the rows in the order of the source."""
        for index in sorted(self.rows):
            yield self.rows[index]

    def _row(self, index: int, row: SourceRow) -> list[Row]:
        return [] if index in self.rows else [_row_line(index, row)]

    def _append(self, *lines: Row) -> None:
        self._journal.append(lines)
        for line in lines:
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

    def _bind(self, folder: Path, settings: Mapping[str, Any]) -> None:
        begun = self._journal.rows.get("settings")
        if begun is None:
            self._append({"id": "settings", "settings": settings})
            return
        before, now = (set(_flat(one)) for one in (begun["settings"], settings))
        if before != now:
            changed = ", ".join(sorted({key for key, _ in before ^ now}))
            raise UsageError(
                f"{folder} was begun with other settings: {changed}",
                hint="change them back, or name another output.folder",
            )


def _flat(settings: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key with its tables in front, and its value as JSON."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", json.dumps(value)


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
