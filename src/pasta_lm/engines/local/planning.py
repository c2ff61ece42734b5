"""Requests of the local engine, and the plan of each forward pass: who feeds, whose logits count.

Checks and bounds read the request and the model, never the load. The plan knows threads and pages,
and no tensor of the model; the scheduler chooses who takes part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from pasta_lm.engines.live_thread import LiveThread, MatcherOf
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.scheduler import Scheduler, Ticket
from pasta_lm.engines.passes.pool import Run
from pasta_lm.engines.passes.runner import EntryTensors, RequestSpan
from pasta_lm.engines.passes.sampling import token_logprobs
from pasta_lm.engines.request import Request, StreamEvent, TokenLogprobs
from pasta_lm.engines.response import Response
from pasta_lm.errors import ContextLengthError, RequestError, UsageError
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import PositionStrategy, check_join
from pasta_lm.interpreter.trace import Kind
from pasta_lm.interpreter.visibility import PROMPT_OWNER
from pasta_lm.language.parser import Form

MAX_BATCH_TOKENS = {"cpu": 256, "cuda": 2048}  # CPU: a second with 135M weights; more is no faster
CHUNK_TOKENS = {"cpu": 32, "cuda": 512}  # a few times the time of a pass that only decodes
MIN_SHARE = 16  # tokens of a prompt in a pass that it takes part in
# On a CPU 40 rows together gain nothing over sequential decoding, and 100 lose. GPUs: simulated.
MAX_ROWS = {"cpu": 32, "cuda": 256}


def check_request(request: Request, loaded: LoadedModel) -> None:
    """Raise a ``RequestError`` for a request that would fail in a pass, with all others in it."""
    last = loaded.max_position
    if last is not None and len(request.prompt) > last + 1:
        raise ContextLengthError(len(request.prompt), last + 1)
    request.check(last, loaded.num_tokens)
    if request.guesser is not None and (request.expansion or request.form is not Form.MAIN):
        reason = f"strategy {request.strategy!r} decodes no guesses"
        raise RequestError(reason, hint="leave them out, or answer sequentially or with pasta")
    if request.positions is PositionStrategy.ORACLE and request.forced is None:
        reason = "positions 'oracle' need the length of every block, which only a given answer has"
        raise RequestError(reason, hint="use positions 'predict' or 'continue'")
    try:
        check_join(request.join, request.positions)
    except UsageError as exc:
        raise RequestError(exc.message, hint=exc.hint) from exc


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request that is waiting or running, with all its samples."""

    number: int
    request: Request
    entries: Entries
    ticket: Ticket
    responses: list[Response]
    tensors: EntryTensors
    began_s: float
    run: Run | None = None  # the run that ``tensors`` describe
    first_guess: int | None = None  # the slot of the first guess of the pass

    @classmethod
    def begin(
        cls, request: Request, ticket: Ticket, loaded: LoadedModel, matcher_of: MatcherOf
    ) -> ActiveRequest:
        kind = loaded.kind if request.forced is None else Kind.REPLAYED
        entries = Entries.of_prompt(request.prompt)
        responses = [
            Response(
                request, sample, entries, loaded.vocabulary,
                limits=request.limits(loaded.max_position),
                trace=request.new_trace(kind, engine="torch", model=loaded.name),
                eos_ids=loaded.eos_ids, matcher_of=matcher_of, num_tokens=loaded.num_tokens,
            )
            for sample in range(request.params.n)
        ]  # fmt: skip
        tensors, began_s = EntryTensors(entries, loaded.device), time.perf_counter()
        return cls(ticket.arrival, request, entries, ticket, responses, tensors, began_s)

    def drain(self) -> list[StreamEvent]:
        return [event for response in self.responses for event in response.drain()]

    def plain_text(self) -> list[int]:
        """Return the tokens from the prompt on up to the first that is not of main, or jumps."""
        last = PROMPT_OWNER + (len(self.responses) == 1)  # main's first owner, if one main alone
        pairs = enumerate(self.entries.items)
        plain = takewhile(lambda pair: pair[1].position == pair[0] and pair[1].owner <= last, pairs)
        return [entry.token for _, entry in plain]

    @property
    def is_finished(self) -> bool:
        return all(response.is_finished for response in self.responses)

    @property
    def is_computed(self) -> bool:
        """Return whether all its entries so far are in the pool, so that its threads can decode."""
        return self.ticket.num_computed >= len(self.entries)

    @property
    def has_decoded(self) -> bool:
        threads = (live for response in self.responses for live in response.live.values())
        is_chosen = any(live.next_token is not None for live in threads)
        return is_chosen or len(self.entries) > len(self.request.prompt)

    def settle(self) -> list[tuple[int, int]]:
        """Remove the wrong guesses of a pass; return the old and new slots of those that moved."""
        first, self.first_guess = self.first_guess, None
        if first is None:
            return []
        settled = ((response, response.guesses.settle()) for response in self.responses)
        right = [(response, *pair) for response, pairs in settled for pair in pairs]
        slots = sorted(placement.slot for _, _, placement in right)
        self.entries.keep(first, slots)
        now = {slot: index for index, slot in enumerate(slots, start=first)}
        for response, thread, placement in right:
            response.recorder.fed(thread, replace(placement, slot=now[placement.slot]))
        self.ticket.num_computed = len(self.entries)
        self.tensors.truncate(first)
        return [pair for pair in now.items() if pair[0] != pair[1]]


class LogitsRow(NamedTuple):
    """The thread whose next token a row of logits gives."""

    active: ActiveRequest
    response: Response
    live: LiveThread
    at: int  # the index of its token in the pass
    num_guessed: int = 0  # the row counts only if this many guesses before it were right

    @property
    def is_read(self) -> bool:
        """Return whether the request wants log-probabilities."""
        request = self.response.request
        return request.params.logprobs is not None or request.scores_forms

    def note(self, logits_V: Tensor, token: int, allowed: Tensor | None) -> None:
        """Keep the token's log-probabilities that the request wants, if it chooses by itself."""
        response, live, request = self.response, self.live, self.response.request
        if request.forced is not None:
            return
        key = live.thread.id, response.trace.threads[live.thread.id].num_tokens + self.num_guessed
        if (num_top := request.params.logprobs) is not None:
            response.logprobs[key] = token_logprobs(logits_V, token, num_top)
        if request.scores_forms and allowed is not None and live.matcher is not None:
            ids = live.matcher.endings(token)
            ids = allowed.nonzero()[:, 0].tolist() if live.is_scored else ids
            allowed_V = allowed.to(logits_V.device)
            logprobs_V = logits_V.masked_fill(~allowed_V, float("-inf")).log_softmax(dim=-1)
            pairs = zip(ids, logprobs_V[ids].tolist(), strict=True)
            response.in_form[key] = TokenLogprobs(float(logprobs_V[token]), tuple(pairs))

    def take(self, token: int, t_s: float) -> None:
        response, live, num_guessed = self.response, self.live, self.num_guessed
        if response.trace.prefill_s == 0.0:
            response.trace.prefill_s = t_s
        # An earlier row may have ended the thread, or shown a guess to be wrong.
        if live.decodes and (num_guessed == 0 or response.guesses.confirm(live, num_guessed)):
            response.take(live, token, t_s=t_s)


@dataclass(slots=True)
class PassPlan:
    """A forward pass in the making."""

    spans: list[tuple[ActiveRequest, RequestSpan]] = field(default_factory=list)
    rows: list[LogitsRow] = field(default_factory=list)
    decoding: list[ActiveRequest] = field(default_factory=list)
    computing: list[ActiveRequest] = field(default_factory=list)
    num_tokens: int = 0
    spare_rows: int | None = None  # for threads beyond the first of each response; None: no bound

    @property
    def indices(self) -> list[int]:
        return [row.at for row in self.rows]

    def threads_to_feed(self, response: Response) -> list[LiveThread]:
        if self.spare_rows is None:
            return response.threads_to_feed()
        threads = response.threads_to_feed(1 + self.spare_rows)
        num_more = max(0, sum(live.decodes for live in threads) - 1)
        self.spare_rows = max(0, self.spare_rows - num_more)
        return threads

    def only(self, spans: Sequence[tuple[ActiveRequest, RequestSpan]]) -> PassPlan:
        plan = PassPlan()
        for active, span in spans:
            start = plan.num_tokens
            plan.spans.append((active, replace(span, start=start)))
            rows = (row for row in self.rows if row.active is active)
            plan.rows += [row._replace(at=start + row.at - span.start) for row in rows]
            plan.computing += [active] if active in self.computing else []
            plan.num_tokens += span.num_rows
        return plan

    def keep(self, numbers: Container[int]) -> None:
        self.rows = [row for row in self.rows if row.active.number in numbers]
        self.decoding = [active for active in self.decoding if active.number in numbers]
        self.computing = [active for active in self.computing if active.number in numbers]


class Planner:
    """Make the plan of each pass; None stands for a size that suits the device.

    Prompts are cut beyond ``max_batch_tokens`` of a pass, and at ``chunk_tokens`` in a pass that
    yields tokens; all have a fair share, the shortest come first. ``max_rows`` threads decode in a
    pass: while there are more, blocks wait as deferred ones do, but a thread of each response
    always runs.
    """

    def __init__(
        self, scheduler: Scheduler, device: torch.device, *, max_batch_tokens: int | None,
        chunk_tokens: int | None, max_rows: int | None,
    ) -> None:  # fmt: skip
        self._scheduler, self._device = scheduler, device
        kind = device.type if device.type in MAX_ROWS else "cpu"
        self._max_batch_tokens = max_batch_tokens or MAX_BATCH_TOKENS[kind]
        self._chunk_tokens = min(chunk_tokens or CHUNK_TOKENS[kind], self._max_batch_tokens)
        self._max_rows = max_rows or MAX_ROWS[kind]

    def plan(
        self, requests: Mapping[int, ActiveRequest],
        apart: Callable[[ActiveRequest], AbstractContextManager[None]],
    ) -> PassPlan:  # fmt: skip
        """Plan the next pass, each request in the context ``apart``: an error ends it alone."""
        scheduled = [requests[ticket.arrival] for ticket in self._scheduler.schedule()]
        decoding = [active for active in scheduled if active.is_computed]
        plan, shares = PassPlan(), self._shares(scheduled)
        responses = [response for active in decoding for response in active.responses]
        counts = [sum(1 for _ in response.interpreter.runnable()) for response in responses]
        if sum(counts) > self._max_rows:
            plan.spare_rows = max(0, self._max_rows - sum(map(bool, counts)))
        for active in scheduled:
            if active.ticket.run is None:  # an older one took its pages
                continue
            with apart(active):
                if active.is_computed:
                    self._plan_decoding(plan, active)
                else:
                    self._plan_computing(plan, active, shares[active.number])
        return plan

    def _shares(self, scheduled: Sequence[ActiveRequest]) -> dict[int, int]:
        waiting = [active for active in scheduled if not active.is_computed]
        left = {item.number: len(item.entries) - item.ticket.num_computed for item in waiting}
        room = self._max_batch_tokens if len(left) == len(scheduled) else self._chunk_tokens
        has_end = any(num <= room // len(left) for num in left.values())  # a prompt yields a token
        unfinished = min(room, self._chunk_tokens) if has_end and len(left) > 1 else room
        shares, oldest = dict.fromkeys(left, 0), min(left, default=0)  # the oldest takes part
        for rank, number in enumerate(sorted(left, key=lambda n: (n != oldest, left[n]))):
            share = min(left[number], room, max(MIN_SHARE, room // (len(left) - rank)))
            if share < left[number]:
                share = min(share, unfinished)
                unfinished -= share
            shares[number], room = share, room - share
        return shares

    def _plan_computing(self, plan: PassPlan, active: ActiveRequest, share: int) -> None:
        # Compute entries that are placed already: a prompt, or all of a preempted request.
        ticket = active.ticket
        if active.run is not ticket.run:  # its keys begin anew, where they stood at first
            active.run = ticket.run
            for response in active.responses:
                response.trace.num_cached_tokens = ticket.num_shared or 0
            active.tensors = EntryTensors(active.entries, self._device)
        if share <= 0 or not self._scheduler.reserve_pages(ticket, len(active.entries)):
            return
        first, stop = ticket.num_computed, min(ticket.num_computed + share, len(active.entries))
        self._add(plan, active, first, stop)
        plan.computing.append(active)
        if active.is_computed and not active.has_decoded:
            for response in active.responses:
                plan.rows.append(LogitsRow(active, response, response.live[0], plan.num_tokens - 1))

    def _plan_decoding(self, plan: PassPlan, active: ActiveRequest) -> None:
        # Every thread of a request feeds its next tokens, or none if pages are missing.
        pairs = ((response, plan.threads_to_feed(response)) for response in active.responses)
        feeding = [(response, live) for response, threads in pairs for live in threads]
        first = len(active.entries)
        num_new = sum(response.max_to_feed(live) for response, live in feeding)
        num_entries = min(first + num_new, active.ticket.largest_need)
        if not self._scheduler.reserve_pages(active.ticket, num_entries):
            return
        for response in active.responses:
            response.begin_pass()
        # Syncs come last: a sync sees all that the pass feeds.
        feeding.sort(key=lambda pair: pair[1].joined is not None)
        last = {}  # the slot of what each thread feeds last
        for response, live in feeding:
            response.feed(live)
            last[response.sample, live.thread.id] = len(active.entries) - 1
        num_placed = len(active.entries)
        for response in active.responses:
            response.guesses.feed()
        if len(active.entries) > num_placed:
            active.first_guess = num_placed
        start = plan.num_tokens - first  # where the request's first slot is in the pass
        for response in active.responses:
            for live in response.threads_to_decode():
                guessed = [placement.slot for placement in live.placements]
                slots = enumerate([last[response.sample, live.thread.id], *guessed])
                plan.rows += [LogitsRow(active, response, live, start + s, k) for k, s in slots]
        plan.decoding.append(active)
        self._add(plan, active, first, len(active.entries))

    def _add(self, plan: PassPlan, active: ActiveRequest, first: int, stop: int) -> None:
        assert active.ticket.run is not None
        plan.spans.append((active, RequestSpan(plan.num_tokens, first, stop, active.ticket.run)))
        plan.num_tokens += stop - first
        active.ticket.num_computed = stop
