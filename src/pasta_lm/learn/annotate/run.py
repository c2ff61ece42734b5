"""Annotate a source: ask the teacher, examine its copies, and write what every row ended as.

The journal has the raw replies, each on disk before it counts: a run that was stopped continues,
and pays nothing twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pasta_lm.engines.servers.client import RetryPolicy
from pasta_lm.errors import InputError, RequestError
from pasta_lm.journal import Journal, Row, write_rows
from pasta_lm.language.document import Document
from pasta_lm.learn.annotate.filters import FilterConfig, Rejection
from pasta_lm.learn.annotate.layout_rule import markdown_rule
from pasta_lm.learn.annotate.own_answers import digest
from pasta_lm.learn.annotate.recipe import AnnotateConfig, SourceRow, TeacherConfig, read_source
from pasta_lm.learn.annotate.teacher import TeacherConversation, read_prompt
from pasta_lm.learn.chat import client as chat
from pasta_lm.learn.chat import pool as pools
from pasta_lm.learn.data.annotated import write_records
from pasta_lm.run_folder import RunFolder

JOURNAL, RECORDS, FAILURES = "journal", "annotated.jsonl", "failed.jsonl"

# Guesses of an estimate.
COPY_TOKENS_PER_ANSWER_TOKEN = 1.15
REPLIES_PER_ROW = 1.2
TEACHER_TOKENS_PER_S = 50.0


@dataclass(frozen=True, slots=True)
class EndedRow:
    """A row of the source with its annotated answer, or the reason why it has none."""

    row: SourceRow
    outcome: Document | Rejection | None  # None: it was skipped.
    replies: Sequence[chat.ChatReply] = ()

    @property
    def status(self) -> tuple[str, str]:
        if self.outcome is None:
            return "skipped", self.row.skipped or ""
        if isinstance(self.outcome, Document):
            return "ok", ""
        return "failed", self.outcome.reason


@dataclass
class Tally:
    """The rows of a run that ended, by index in the source, and the tokens of all its replies."""

    spent: pools.Spending
    progress: Callable[[Tally], None]  # Called after each row and each reply.
    rows: dict[int, EndedRow] = field(default_factory=dict)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def num_rows(self) -> Counter[str]:
        totals: Counter[str] = Counter()
        for (status, _), count in self.reasons.items():
            totals[status] += count
        return totals

    def end(self, index: int, row: EndedRow) -> None:
        self.rows[index] = row
        self.reasons[row.status] += 1
        self.progress(self)

    def pay(self, reply: Row) -> None:
        self.spent.count(reply)
        self.progress(self)


class AnnotationRun(NamedTuple):
    """The result of a run; unless it was interrupted, every requested row has an end."""

    tally: Tally
    is_interrupted: bool
    files: list[Path]


def source_rows(config: AnnotateConfig, limit: int | None = None) -> Iterator[SourceRow]:
    seen: set[str] = set()
    for row in islice(read_source(config.rows), limit):
        is_long = len(row.answer) > config.filters.max_answer_characters
        skipped = "duplicate_id" if row.id in seen else "too_long" if is_long else None
        seen.add(row.id)
        yield replace(row, skipped=row.skipped or skipped)


def first_request(config: AnnotateConfig, limit: int | None = None) -> Sequence[chat.Message]:
    rows = (row for row in source_rows(config, limit) if row.skipped is None)
    if (row := next(rows, None)) is None:
        return ()
    return TeacherConversation(row.prompt, row.answer, config.filters).messages


def estimate(rows: Iterable[SourceRow], teacher: TeacherConfig) -> tuple[int, str]:
    """Return the number of rows, and in words the requests that they need and their time."""
    num_rows = num_asked = num_prompt = num_bytes = 0
    for row in rows:
        num_rows += 1
        if row.skipped is None:
            num_asked += 1
            num_prompt += pools.estimate_tokens(read_prompt().messages(row.prompt, row.answer))
            num_bytes += len(row.answer.encode())
    copies = REPLIES_PER_ROW * COPY_TOKENS_PER_ANSWER_TOKEN * num_bytes / pools.CHARACTERS_PER_TOKEN
    tokens = chat.TokenCounts(int(REPLIES_PER_ROW * num_prompt), int(copies))
    asking = pools.Estimate(round(num_asked * REPLIES_PER_ROW), tokens)
    wall_s = copies / TEACHER_TOKENS_PER_S / teacher.max_in_flight
    skipped = f"{num_rows} rows ({num_rows - num_asked} skipped)"
    return num_rows, f"{skipped}: {asking}, {wall_s / 60:.0f} min or more"


def annotate(
    config: AnnotateConfig, *, limit: int | None = None,
    progress: Callable[[Tally], None] = lambda tally: None, policy: RetryPolicy | None = None,
    notice: Callable[[int], None] = lambda num_in_flight: None,
) -> AnnotationRun:  # fmt: skip
    """Annotate the source of a recipe, or its first rows, where an earlier run stopped.

    A first SIGINT or SIGTERM awaits the requests in flight, whose number ``notice`` gets; a second
    one raises ``KeyboardInterrupt``.
    """
    folder = RunFolder(Path(config.output.folder))
    with folder.locked():
        folder.begin(config.settings())
        journal, pool = folder.journal(JOURNAL), pools.RequestPool("rows", notice)
        tally = Tally(pools.Spending(journal.rows.values()), progress)
        numbered = enumerate(source_rows(config, limit))
        if config.teacher is not None:
            teacher = _Teacher(config.teacher, config.filters, journal, pool, tally)
            client = partial(chat.ChatClient, config.teacher, policy=policy)
            asyncio.run(pool.run(client, numbered, teacher.annotate))
        for index, row in numbered if config.teacher is None else ():
            document = None
            if row.skipped is None:
                document = markdown_rule(row.prompt, row.answer, config.filters)
            tally.end(index, EndedRow(row, document))
        return AnnotationRun(tally, pool.is_interrupted, write_set(config, folder, tally))


@dataclass(frozen=True, slots=True)
class _Teacher:
    config: TeacherConfig
    filters: FilterConfig
    journal: Journal
    pool: pools.RequestPool
    tally: Tally

    async def annotate(self, job: tuple[int, SourceRow]) -> None:
        (index, row), replies = job, list[chat.ChatReply]()
        outcome = None if row.skipped is not None else await self._outcome(index, row, replies)
        if outcome is not None or row.skipped is not None:
            self.tally.end(index, EndedRow(row, outcome, replies))

    async def _outcome(
        self, index: int, row: SourceRow, replies: list[chat.ChatReply]
    ) -> Document | Rejection | None:
        talk = TeacherConversation(row.prompt, row.answer, self.filters)
        while talk.outcome is None:
            name = f"reply/{index}/{len(replies) + 1}"
            origin = {"row": row.id, "digest": digest(repr(replace(row, skipped=None)))}
            if (line := self.journal.rows.get(name)) is None:
                request = chat.ChatRequest(talk.messages, talk.max_tokens, self.config.temperature)
                reply = await self.pool.ask(request)
                if isinstance(reply, RequestError):
                    line = {"id": name, **origin, "refused": reply.message}
                elif isinstance(reply, chat.ChatReply):
                    line = {"id": name, **origin, "reply": dict(reply.raw)}
                else:  # none came after all retries: another run asks again
                    return None if reply is None else Rejection("no_answer", reply.message)
                self.journal.append([line])
                self.tally.pay(line)
            elif line.get("digest") != origin["digest"]:
                reason = f"the source has changed: row {index + 1} was {line.get('row')}"
                hint = "give the changed source a new output folder"
                raise InputError(f"{reason} and is {row.id}", hint=hint)
            if "refused" in line:
                return Rejection("request_refused", line["refused"])
            replies.append(chat.read_reply(line["reply"]))
            talk.feed(replies[-1])
        return talk.outcome


def write_set(config: AnnotateConfig, folder: RunFolder, tally: Tally) -> list[Path]:
    """Write the data set of a run in the order of its source, and return its files."""
    kept, failed, files = [], [], [folder.path / name for name in (RECORDS, FAILURES)]
    for _, ended in sorted(tally.rows.items()):
        row, outcome = ended.row, ended.outcome
        if isinstance(outcome, Document):
            kept.append(row.record(outcome, config.rows.label))
        elif outcome is not None:
            why = {"reason": outcome.reason, "message": outcome.message}
            replies = [reply.text or None for reply in ended.replies]
            texts = {"prompt": row.prompt, "answer": row.answer, "replies": replies}
            failed.append({"id": row.id, **why, **texts})
    with folder.writing():
        write_records(files[0], kept)
        write_rows(files[1], failed)
    return files
