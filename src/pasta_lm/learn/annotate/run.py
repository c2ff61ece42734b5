"""Annotate a source: ask the teacher, examine its copies, store them, until every row has an end.

Every reply is on disk before it counts: a run that was stopped continues, and pays nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pasta_lm.engines.servers.request_pace import RequestPace, RetryPolicy
from pasta_lm.errors import RemoteError, RequestError
from pasta_lm.language.document import Document
from pasta_lm.learn.annotate.dataset import AnnotationLog, RowLog, Tally, write_set
from pasta_lm.learn.annotate.filters import FilterConfig, Rejection, examine
from pasta_lm.learn.annotate.recipe import AnnotateConfig, SourceRow, TeacherConfig, read_source
from pasta_lm.learn.annotate.teacher import TeacherConversation
from pasta_lm.learn.chat.client import (
    ChatClient,
    ChatReply,
    ChatRequest,
    Prices,
    TokenCounts,
    read_reply,
)
from pasta_lm.learn.chat.pool import (
    CHARACTERS_PER_TOKEN,
    Budget,
    Estimate,
    RequestPool,
    estimate_tokens,
)
from pasta_lm.run_folder import RunFolder

JOURNAL = "journal"
DUPLICATE = "duplicate_id"
TOO_LONG = "too_long"
REQUEST_REFUSED = "request_refused"

# Guesses of an estimate.
COPY_TOKENS_PER_ANSWER_TOKEN = 1.15
REPLIES_PER_ROW = 1.2
TEACHER_TOKENS_PER_S = 50.0

Rule = Callable[[str, str], Document]
"""From a prompt and its answer to the annotated answer."""
Progress = Callable[[Tally], None]


class AnnotationRun(NamedTuple):
    """The result of a run."""

    tally: Tally
    stopped_by: str
    """``cost limit`` or ``interrupt``; empty if every requested row has an end."""
    files: list[Path]


def source_rows(config: AnnotateConfig, limit: int | None = None) -> Iterator[SourceRow]:
    """Yield the rows of a run: duplicates and answers that are too long are marked as skipped."""
    seen: set[str] = set()
    for row in islice(read_source(config.rows), limit):
        skipped = row.skipped
        if skipped is None and row.id in seen:
            skipped = DUPLICATE
        elif skipped is None and len(row.answer) > config.filters.max_answer_characters:
            skipped = TOO_LONG
        seen.add(row.id)
        yield SourceRow(row.id, row.prompt, row.answer, skipped)


class RowsEstimate(NamedTuple):
    """What annotating some rows will take."""

    num_rows: int
    num_skipped: int
    asking: Estimate
    wall_s: float
    """With the largest number of requests in flight."""


def estimate(rows: Iterable[SourceRow], teacher: TeacherConfig) -> RowsEstimate:
    """Estimate requests, tokens and time from the lengths of texts."""
    num_rows = num_skipped = prompt = completion = 0
    for row in rows:
        num_rows += 1
        if row.skipped is not None:
            num_skipped += 1
            continue
        talk = TeacherConversation(row.prompt, row.answer)
        prompt += int(estimate_tokens(talk.messages) * REPLIES_PER_ROW)
        answer_tokens = len(row.answer.encode()) / CHARACTERS_PER_TOKEN
        completion += int(answer_tokens * COPY_TOKENS_PER_ANSWER_TOKEN * REPLIES_PER_ROW)
    num_requests = round((num_rows - num_skipped) * REPLIES_PER_ROW)
    asking = Estimate(num_requests, TokenCounts(prompt, completion), teacher.prices)
    wall_s = completion / TEACHER_TOKENS_PER_S / teacher.max_in_flight
    return RowsEstimate(num_rows, num_skipped, asking, wall_s)


def annotate(
    config: AnnotateConfig,
    *,
    rule: Rule | None = None,
    method: Mapping[str, object] | None = None,
    limit: int | None = None,
    cost_limit_usd: float | None = None,
    progress: Progress = lambda tally: None,
    policy: RetryPolicy | None = None,
    pace: RequestPace | None = None,
    notice: Callable[[int], None] = lambda num_in_flight: None,
) -> AnnotationRun:
    """Annotate the source of a recipe, continuing where an earlier run stopped.

    A first SIGINT or SIGTERM awaits the requests in flight; a second one raises
    ``KeyboardInterrupt``.

    Args:
        config: The recipe.
        rule: Annotates instead of a teacher.
        method: Name and settings of a rule that is not the recipe's own.
        limit: Only the first rows of the source.
        cost_limit_usd: Hard limit on the cost of the whole output folder.
        progress: Called after each row and each reply.
        policy: Of retries.
        pace: By default bounded as in the recipe.
        notice: Called at a first signal with the number of requests in flight.

    Raises:
        UsageError: another process writes there, the settings have changed, a key is missing.
        EndpointError: the server refuses every request.
        RemoteError: the server is gone.
        InputError: the source cannot be read, or has changed.
        PastaError: the disk is full.
    """
    prices = config.teacher.prices if config.teacher else Prices()
    folder = RunFolder(Path(config.output.folder))
    with folder.locked():
        folder.begin({**config.settings(), **(method or {})})
        log = AnnotationLog(folder.journal(JOURNAL), prices, progress)
        numbered = enumerate(source_rows(config, limit))
        pool = RequestPool(Budget(log.tally.spent, cost_limit_usd), "rows", notice)

        async def work(job: tuple[int, SourceRow]) -> None:
            if (known := log.unfinished(*job)) is not None:
                await _by_teacher(pool, log, known, config)

        if rule is not None:
            for index, row in numbered:
                if (known := log.unfinished(index, row)) is not None:
                    log.store_end(known, _by_rule(rule, row, config.filters))
        else:
            assert (teacher := config.teacher) is not None
            client = partial(ChatClient, teacher, pace=pace, policy=policy)
            asyncio.run(pool.run(client, numbered, work))
        return AnnotationRun(log.tally, pool.stopped_by, write_set(config, log, method))


def _by_rule(rule: Rule, row: SourceRow, filters: FilterConfig) -> Document:
    """Annotate a row; a rejected annotation leaves the answer without tags."""
    document = rule(row.prompt, row.answer)
    kept = examine(document.annotator_form(), row.answer, filters)
    return kept if isinstance(kept, Document) else document.without_tags()


async def _by_teacher(
    pool: RequestPool, log: AnnotationLog, known: RowLog, config: AnnotateConfig
) -> None:
    """Ask the teacher until the row has an end or the run is stopped."""
    assert config.teacher is not None
    talk = TeacherConversation(known.row.prompt, known.row.answer, config.filters)
    for raw in known.replies:
        talk.feed(read_reply(raw))
    if talk.outcome is not None:  # a run was killed between the last reply and its end
        log.store_end(known, talk.outcome)

    def keep(reply: ChatReply) -> None:
        talk.feed(reply)
        log.store_reply(known, reply, reserved, talk.outcome)

    def fail(error: RemoteError | RequestError) -> None:
        if isinstance(error, RequestError):
            log.store_end(known, Rejection(REQUEST_REFUSED, error.message))
        else:
            log.store_unanswered(known, error.message)

    while talk.outcome is None:
        request = ChatRequest(talk.messages, talk.max_tokens, config.teacher.temperature)
        reserved = TokenCounts(estimate_tokens(talk.messages), talk.max_tokens)
        if not await pool.ask(request, reserved, keep, fail):
            return
