"""Annotate a source: ask, judge, write down, many answers at once, until all have an end.

Every reply is on disk before it counts, so whatever stops a run, the next one goes on from there
and pays for nothing twice.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from pasta_lm.data.annotate_config import AnnotateConfig
from pasta_lm.data.annotated_set import write_set
from pasta_lm.data.annotation_log import AnnotationLog
from pasta_lm.data.budget import Budget, Tally, request_tokens
from pasta_lm.data.filters import examine
from pasta_lm.data.sources import SourceRow, read_source
from pasta_lm.data.teacher import Conversation, Outcome
from pasta_lm.errors import EndpointError, RemoteError, RequestError
from pasta_lm.language.document import Document
from pasta_lm.remote.chat import ChatRequest, read_reply
from pasta_lm.remote.client import ChatClient
from pasta_lm.remote.pace import Pace
from pasta_lm.remote.retry import RetryPolicy

DUPLICATE = "duplicate_id"
TOO_LONG = "too_long"
REQUEST_REFUSED = "request_refused"
ENOUGH_FAILURES = 5
"""So many rows in a row without any reply: the server is gone, or refuses everything."""

COST_LIMIT, INTERRUPT = "cost limit", "interrupt"

Rule = Callable[[str], Document]
Progress = Callable[[Tally], None]


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
) -> Run:
    """Annotate what a recipe names, going on where an earlier run stopped.

    Interrupted once, it finishes what is in flight; twice, it stops with ``KeyboardInterrupt``.

    Args:
        config: The recipe.
        rule: What annotates by rule, where the recipe says so.
        limit: Take the first rows of the source only.
        cost_limit_usd: Ask nothing that could bring the cost of the whole folder above it.
        progress: Called after each row.
        policy: Of retries.

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
            done = run.by_rule(rule) if rule else asyncio.run(run.by_teacher(policy))
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
        self._budget = Budget(self._tally, cost_limit_usd)
        self._stopped_by = ""
        self._num_failures = 0
        self._num_replies = 0

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

    async def by_teacher(self, policy: RetryPolicy | None) -> Run:
        teacher = self._config.teacher
        assert teacher is not None
        pace = Pace(teacher.max_in_flight)
        async with ChatClient(teacher.endpoint, pace=pace, policy=policy) as client:
            with self._interruptible():
                async with asyncio.TaskGroup() as workers:
                    for _ in range(teacher.max_in_flight):
                        workers.create_task(self._work(client))
        return self._run()

    def _run(self) -> Run:
        return Run(self._tally, not self._stopped_by, self._stopped_by)

    async def _work(self, client: ChatClient) -> None:
        while not self._stopped_by:
            async with self._reading:
                taken = await asyncio.to_thread(next, self._rows, None)
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
        self._ended(index)

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
        except RequestError as exc:
            self._fail(exc)
            self._end(index, row, Outcome(None, REQUEST_REFUSED, exc.message))
            return False
        except RemoteError as exc:
            self._fail(exc)
            self._log.unanswered(index, row, exc.message)
            self._ended(index)
            return False
        finally:
            await self._budget.release(tokens)
        self._num_failures = 0
        self._num_replies += 1
        return True

    def _fail(self, error: RequestError | RemoteError) -> None:
        """Stop the run where nothing but failures comes: the rows are asked again another time."""
        self._num_failures += 1
        if self._num_failures < ENOUGH_FAILURES:
            return
        if isinstance(error, RemoteError):
            raise RemoteError(
                f"{error.message} ({self._num_failures} rows in a row)",
                hint="what was paid is kept: run the same command again when the server is back",
            ) from error
        if not self._num_replies:
            raise EndpointError(
                error.message, hint="no request succeeded: check 'model' and what it can take"
            ) from error

    def _end(self, index: int, row: SourceRow, outcome: Outcome) -> None:
        self._log.end(index, row, outcome)
        self._ended(index)

    def _ended(self, index: int) -> None:
        self._tally.count_end(self._log.rows[index])
        self._progress(self._tally)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let a first interrupt stop the taking of rows, and a second one everything."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop() -> None:
            if self._stopped_by == INTERRUPT:
                task.cancel()
            self._stopped_by = INTERRUPT

        with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
            loop.add_signal_handler(signal.SIGINT, stop)
        try:
            yield
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            with suppress(ValueError, RuntimeError, NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, which is what stopped the run."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
