"""Annotate a source: ask, judge, write down, many answers at once, until all have an end.

Every reply is on disk before it counts, so whatever stops a run, the next one goes on from there
and pays for nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from pasta_lm.annotate.dataset import write_set
from pasta_lm.annotate.filters import examine
from pasta_lm.annotate.log import AnnotationLog
from pasta_lm.annotate.recipe import AnnotateConfig
from pasta_lm.annotate.sources import SourceRow, read_source
from pasta_lm.annotate.tally import Tally, request_tokens
from pasta_lm.annotate.teacher import Conversation, Outcome
from pasta_lm.errors import RemoteError, RequestError
from pasta_lm.language.document import Document
from pasta_lm.remote.beside import next_beside
from pasta_lm.remote.budget import Budget
from pasta_lm.remote.chat import ChatRequest, read_reply
from pasta_lm.remote.client import ChatClient
from pasta_lm.remote.interrupts import interruptible
from pasta_lm.remote.pace import Pace
from pasta_lm.remote.pool import Failures
from pasta_lm.remote.retry import RetryPolicy

DUPLICATE = "duplicate_id"
TOO_LONG = "too_long"
REQUEST_REFUSED = "request_refused"

WORKERS_PER_REQUEST = 2
"""Rows in work for each request that may be in flight: some wait to be sent again."""

COST_LIMIT, INTERRUPT = "cost limit", "interrupt"

Rule = Callable[[str], Document]
Progress = Callable[[Tally], None]
Notice = Callable[[int], None]
"""Told, at a first interrupt, how many requests are in flight."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a run ended."""

    tally: Tally
    is_complete: bool
    """Every row that was asked for has an end."""
    stopped_by: str = ""
    """``INTERRUPT`` or ``COST_LIMIT``, where it is not complete."""
    files: tuple[Path, ...] = ()
    """The data set, as far as it goes."""


def source_rows(config: AnnotateConfig, limit: int | None = None) -> Iterator[SourceRow]:
    """Yield the rows of a run: duplicates and what is too long are marked as skipped."""
    seen: set[str] = set()
    for row in islice(read_source(config.source), limit):
        skipped = row.skipped
        if skipped is None and row.id in seen:
            skipped = DUPLICATE
        elif skipped is None and len(row.answer) > config.filters.max_answer_characters:
            skipped = TOO_LONG
        seen.add(row.id)
        yield SourceRow(row.id, row.prompt, row.answer, skipped)


def annotate(
    config: AnnotateConfig,
    *,
    rule: Rule | None = None,
    limit: int | None = None,
    cost_limit_usd: float | None = None,
    progress: Progress | None = None,
    policy: RetryPolicy | None = None,
    pace: Pace | None = None,
    notice: Notice | None = None,
) -> Run:
    """Annotate what a recipe names, going on where an earlier run stopped.

    Interrupted once, by SIGINT or SIGTERM, it awaits the requests in flight and sends no other;
    twice, it stops with ``KeyboardInterrupt``.

    Args:
        config: The recipe.
        rule: What annotates by rule, where the recipe says so.
        limit: Take the first rows of the source only.
        cost_limit_usd: Ask nothing that could bring the cost of the whole folder above it.
        progress: Called after each row.
        policy: Of retries.
        pace: Of requests; as the recipe bounds it, if it is not given.
        notice: Called at a first interrupt.

    Raises:
        UsageError: another process writes there, the settings have changed, a key is missing.
        EndpointError: the server refuses every request.
        RemoteError: the server is gone.
        InputError: the source cannot be read, or has changed.
        PastaError: the disk is full.
    """
    with AnnotationLog(Path(config.output.folder), config.bound()) as log:
        run = _Annotation(config, log, limit, cost_limit_usd, progress or (lambda tally: None))
        try:
            done = run.by_rule(rule) if rule else asyncio.run(run.by_teacher(policy, pace, notice))
        except ExceptionGroup as group:
            raise _first(group) from None
        return replace(done, files=tuple(write_set(config, log, done.tally)))


class _Annotation:
    """One run over one log."""

    def __init__(
        self,
        config: AnnotateConfig,
        log: AnnotationLog,
        limit: int | None,
        cost_limit_usd: float | None,
        progress: Progress,
    ) -> None:
        self._config, self._log, self._progress = config, log, progress
        self._rows = enumerate(source_rows(config, limit))
        self._reading = asyncio.Lock()
        self._tally = Tally(config.teacher)
        for row in log.in_order():
            self._tally.count_row(row)
        self._budget = Budget(self._tally.spent, cost_limit_usd)
        self._stopped_by = ""
        self._failures = Failures("rows")

    def by_rule(self, rule: Rule) -> Run:
        """Let a rule annotate; what it marks in vain is left as it is."""
        for index, row in self._rows:
            if self._is_over(index, row):
                continue
            document = rule(row.answer)
            kept = examine(document.annotator_form(), row.answer, self._config.filters.bounds)
            if not isinstance(kept, Document):
                kept = document.without_tags()
            self._end(index, row, Outcome(kept))
        return self._run()

    async def by_teacher(
        self, policy: RetryPolicy | None, pace: Pace | None, notice: Notice | None
    ) -> Run:
        """Let a model annotate."""
        teacher = self._config.teacher
        assert teacher is not None
        pace = pace or Pace(teacher.max_in_flight)
        workers: list[asyncio.Task[None]] = []
        async with ChatClient(teacher.endpoint, pace=pace, policy=policy) as client:
            with interruptible(lambda: self._interrupt(client, workers, notice)):
                async with asyncio.TaskGroup() as group:
                    for _ in range(WORKERS_PER_REQUEST * teacher.max_in_flight):
                        workers.append(group.create_task(self._work(client)))
        return self._run()

    def _run(self) -> Run:
        return Run(self._tally, not self._stopped_by, self._stopped_by)

    async def _work(self, client: ChatClient) -> None:
        while not self._stopped_by:
            async with self._reading:
                taken = await next_beside(self._rows)
            if taken is None:
                return
            index, row = taken
            if not self._is_over(index, row):
                await self._annotate_row(client, index, row)

    def _is_over(self, index: int, row: SourceRow) -> bool:
        """Tell whether a row needs nothing more; one that cannot be annotated is written down."""
        known = self._log.known(index, row)
        if known is None and row.skipped is not None:
            self._log.skip(index, row)
            self._ended(index)
        return row.skipped is not None or (known is not None and known.end is not None)

    async def _annotate_row(self, client: ChatClient, index: int, row: SourceRow) -> None:
        talk = Conversation(row.prompt, row.answer, bounds=self._config.filters.bounds)
        known = self._log.known(index, row)
        for raw in known.replies if known else ():
            talk.feed(read_reply(raw))
        if talk.outcome is not None:  # the reply was written, and not yet what it meant
            self._end(index, row, talk.outcome)
            return
        while talk.outcome is None:
            if self._stopped_by or not await self._turn(client, index, row, talk):
                return

    async def _turn(
        self, client: ChatClient, index: int, row: SourceRow, talk: Conversation
    ) -> bool:
        """Ask once more and write the reply down; False: the row ends here, or the run does."""
        assert self._config.teacher is not None
        tokens = request_tokens(talk)
        if not await self._budget.reserve(tokens):
            self._stopped_by = self._stopped_by or COST_LIMIT
            return False
        temperature = self._config.teacher.temperature
        try:
            reply = await client.complete(
                ChatRequest(talk.messages, tokens.completion, temperature=temperature)
            )
            talk.feed(reply)
            self._log.reply(index, row, reply.raw, talk.outcome)
            self._tally.count_reply(reply)
            if talk.outcome is not None:
                self._ended(index)
        except RequestError as exc:
            self._failures.failed(exc)
            self._end(index, row, Outcome(None, REQUEST_REFUSED, exc.message))
            return False
        except RemoteError as exc:
            self._failures.failed(exc)
            self._log.unanswered(index, row, exc.message)
            self._ended(index)
            return False
        finally:
            await self._budget.release(tokens)
        self._failures.answered()
        return True

    def _end(self, index: int, row: SourceRow, outcome: Outcome) -> None:
        self._log.end(index, row, outcome)
        self._ended(index)

    def _ended(self, index: int) -> None:
        self._tally.count_end(self._log.rows[index])
        self._progress(self._tally)

    def _interrupt(
        self, client: ChatClient, workers: Sequence[asyncio.Task[None]], notice: Notice | None
    ) -> None:
        """Stop all but what is in flight."""
        self._stopped_by = INTERRUPT
        client.drain()
        if notice is not None:
            notice(len(client.sending))
        for worker in workers:  # each is at an await, and lines of the journal are never cut
            if worker not in client.sending:
                worker.cancel()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, which is what stopped the run."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
