"""Annotate a source: ask the teacher, examine its copies, store them, until every row has an end.

Every reply is on disk before it counts: a run that was stopped continues, and pays nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pasta_lm.engines.servers.request_pace import RetryPolicy
from pasta_lm.errors import RemoteError, RequestError
from pasta_lm.language.document import Document
from pasta_lm.learn.annotate.dataset import AnnotationLog, RowLog, Tally, write_set
from pasta_lm.learn.annotate.filters import FilterConfig, Rejection, examine
from pasta_lm.learn.annotate.recipe import AnnotateConfig, SourceRow, TeacherConfig, read_source
from pasta_lm.learn.annotate.teacher import TeacherConversation, read_prompt
from pasta_lm.learn.chat.client import ChatClient, ChatReply, ChatRequest, TokenCounts, read_reply
from pasta_lm.learn.chat.pool import CHARACTERS_PER_TOKEN, Estimate, RequestPool, estimate_tokens
from pasta_lm.run_folder import RunFolder

JOURNAL = "journal"
DUPLICATE, TOO_LONG, REQUEST_REFUSED = "duplicate_id", "too_long", "request_refused"

# Guesses of an estimate.
COPY_TOKENS_PER_ANSWER_TOKEN = 1.15
REPLIES_PER_ROW = 1.2
TEACHER_TOKENS_PER_S = 50.0

Rule = Callable[[str, str], Document]  # From a prompt and its answer to the annotated answer.


class AnnotationRun(NamedTuple):
    """The result of a run; unless it was interrupted, every requested row has an end."""

    tally: Tally
    is_interrupted: bool
    files: list[Path]


def source_rows(config: AnnotateConfig, limit: int | None = None) -> Iterator[SourceRow]:
    """Yield the rows of a run: duplicates and answers that are too long are marked as skipped."""
    seen: set[str] = set()
    for row in islice(read_source(config.rows), limit):
        is_long = len(row.answer) > config.filters.max_answer_characters
        skipped = DUPLICATE if row.id in seen else TOO_LONG if is_long else None
        seen.add(row.id)
        yield replace(row, skipped=row.skipped or skipped)


class RowsEstimate(NamedTuple):
    """The requests for some rows, and their time with the largest number in flight."""

    num_rows: int
    num_skipped: int
    asking: Estimate
    wall_s: float


def estimate(rows: Iterable[SourceRow], teacher: TeacherConfig) -> RowsEstimate:
    """Estimate requests, tokens and time from the lengths of texts."""
    num_asked = num_skipped = prompt = completion = 0
    for row in rows:
        num_skipped += row.skipped is not None
        if row.skipped is None:
            num_asked += 1
            messages = read_prompt().messages(row.prompt, row.answer)
            prompt += int(estimate_tokens(messages) * REPLIES_PER_ROW)
            answer_tokens = len(row.answer.encode()) / CHARACTERS_PER_TOKEN
            completion += int(answer_tokens * COPY_TOKENS_PER_ANSWER_TOKEN * REPLIES_PER_ROW)
    tokens = TokenCounts(prompt, completion)
    asking = Estimate(round(num_asked * REPLIES_PER_ROW), tokens)
    wall_s = completion / TEACHER_TOKENS_PER_S / teacher.max_in_flight
    return RowsEstimate(num_asked + num_skipped, num_skipped, asking, wall_s)


def annotate(
    config: AnnotateConfig,
    *,
    rule: Rule | None = None,
    limit: int | None = None,
    progress: Callable[[Tally], None] = lambda tally: None,
    policy: RetryPolicy | None = None,
    notice: Callable[[int], None] = lambda num_in_flight: None,
) -> AnnotationRun:
    """Annotate the source of a recipe, continuing where an earlier run stopped.

    A first SIGINT or SIGTERM awaits the requests in flight; a second one raises
    ``KeyboardInterrupt``.

    Args:
        config: The recipe.
        rule: Annotates instead of a teacher.
        limit: Only the first rows of the source.
        progress: Called after each row and each reply.
        policy: Of retries.
        notice: Called at a first signal with the number of requests in flight.
    """
    folder = RunFolder(Path(config.output.folder))
    with folder.locked():
        folder.begin(config.settings())
        log = AnnotationLog(folder.journal(JOURNAL), progress)
        pool = RequestPool("rows", notice)
        numbered = enumerate(source_rows(config, limit))

        async def work(job: tuple[int, SourceRow]) -> None:
            if (known := log.unfinished(*job)) is not None:
                await _by_teacher(pool, log, known, config)

        if rule is not None:
            for index, row in numbered:
                _by_rule(rule, log, log.unfinished(index, row), config.filters)
        elif config.teacher is not None:
            client = partial(ChatClient, config.teacher, policy=policy)
            asyncio.run(pool.run(client, numbered, work))
        return AnnotationRun(log.tally, pool.is_interrupted, write_set(config, log))


def _by_rule(rule: Rule, log: AnnotationLog, known: RowLog | None, filters: FilterConfig) -> None:
    """Annotate an unfinished row; a rejected annotation leaves the answer without tags."""
    if known is not None:
        document = rule(known.row.prompt, known.row.answer)
        kept = examine(document.annotator_form(), known.row.answer, filters)
        log.store_end(known, kept if isinstance(kept, Document) else document.without_tags())


async def _by_teacher(
    pool: RequestPool, log: AnnotationLog, known: RowLog, config: AnnotateConfig
) -> None:
    assert config.teacher is not None
    talk = TeacherConversation(known.row.prompt, known.row.answer, config.filters)
    for raw in known.replies:
        talk.feed(read_reply(raw))
    if talk.outcome is not None:  # a run was killed between the last reply and its end
        log.store_end(known, talk.outcome)

    def keep(reply: ChatReply) -> None:
        talk.feed(reply)
        log.store_reply(known, reply, talk.outcome)

    def fail(error: RemoteError | RequestError) -> None:
        if isinstance(error, RequestError):
            log.store_end(known, Rejection(REQUEST_REFUSED, error.message))
        else:
            log.store_unanswered(known, error.message)

    while talk.outcome is None:
        request = ChatRequest(talk.messages, talk.max_tokens, config.teacher.temperature)
        if not await pool.ask(request, keep, fail):
            return
