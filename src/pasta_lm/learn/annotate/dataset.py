"""The data set of an annotation run: its rows as they ended, and the files made from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import write_rows
from pasta_lm.language.document import Document
from pasta_lm.learn.annotate.filters import Rejection
from pasta_lm.learn.annotate.recipe import AnnotateConfig, SourceRow
from pasta_lm.learn.chat.client import ChatReply
from pasta_lm.learn.chat.pool import Spending
from pasta_lm.learn.data.annotated import write_records

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
RECORDS, FAILURES = "annotated.jsonl", "failed.jsonl"


@dataclass(frozen=True, slots=True)
class EndedRow:
    """A row of the source with its annotated answer, or the reason why it has none."""

    row: SourceRow
    outcome: Document | Rejection | None  # None: it was skipped.
    replies: Sequence[ChatReply] = ()

    @property
    def status(self) -> tuple[str, str]:
        """Return the status, with the reason of a failure or of a skipped row."""
        if self.outcome is None:
            return SKIPPED, self.row.skipped or ""
        if isinstance(self.outcome, Document):
            return OK, ""
        return FAILED, str(self.outcome.reason)


class Tally:
    """The rows of a run that ended, by index in the source, and the tokens of all its replies."""

    def __init__(self, spent: Spending) -> None:
        self.rows: dict[int, EndedRow] = {}
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.spent = spent

    @property
    def num_rows(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for (status, _), count in self.reasons.items():
            totals[status] += count
        return totals

    @property
    def num_ended(self) -> int:
        return len(self.rows)

    def end(self, index: int, row: EndedRow) -> None:
        self.rows[index] = row
        self.reasons[row.status] += 1


def write_set(config: AnnotateConfig, tally: Tally) -> list[Path]:
    """Write the data set of a run in the order of its source, and return its files.

    Where the disk is full, older files stay.
    """
    folder, kept, failed = Path(config.output.folder), [], []
    for _, ended in sorted(tally.rows.items()):
        row, outcome = ended.row, ended.outcome
        if isinstance(outcome, Document):
            kept.append(row.record(outcome, config.rows.label))
        elif outcome is not None:
            why = {"reason": str(outcome.reason), "message": outcome.message}
            replies = [reply.text or None for reply in ended.replies]
            texts = {"prompt": row.prompt, "answer": row.answer, "replies": replies}
            failed.append({"id": row.id, **why, **texts})
    try:
        write_records(folder / RECORDS, kept)
        write_rows(folder / FAILURES, failed)
    except (OSError, InputError) as exc:
        raise PastaError(
            f"{folder} cannot be written: {cause(exc)}",
            hint="the journal is complete; make room and run the same command again",
        ) from exc
    return [folder / name for name in (RECORDS, FAILURES)]
