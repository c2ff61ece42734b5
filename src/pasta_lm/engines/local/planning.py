"""Plan a forward pass: which tokens each request feeds, and whose logits are wanted.

The plan knows threads and pages, and no tensor of the model. Who takes part is the scheduler's
choice.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.local.active_request import ActiveRequest
from pasta_lm.engines.local.batch import EntryTensors, RequestSlice
from pasta_lm.engines.local.sampling import token_logprobs
from pasta_lm.engines.local.scheduler import Scheduler
from pasta_lm.engines.response import Response

CHUNK_TOKENS = {"cpu": 64, "cuda": 512}  # a few times the time of a pass that only decodes
# Measured with the built-in model in bfloat16 on a CPU: 4 requests with 10 rows together gain 1.30
# over sequential decoding, 16 with 40 rows 1.00, and 32 with 100 rows lose (0.91). On an H100
# forking stops paying, by simulation, between 128 and 256 responses (docs/serving-at-scale.md).
MAX_ROWS = {"cpu": 32, "cuda": 256}


class LogitsRow(NamedTuple):
    """The thread whose next token a row of logits gives."""

    active: ActiveRequest
    response: Response
    live: LiveThread
    num_guessed: int = 0  # the row counts only if this many guesses before it were right

    def note(self, logits_V: Tensor, token: int) -> None:
        """Keep the token's log-probability if the request asks for it and chooses by itself."""
        _, response, live, num_guessed = self
        num_top = response.request.params.logprobs
        if num_top is not None and response.request.forced is None:
            index = response.trace.threads[live.thread.id].num_tokens + num_guessed
            response.logprobs[live.thread.id, index] = token_logprobs(logits_V, token, num_top)

    def take(self, token: int, t_s: float) -> None:
        """Let the thread take its token, unless an earlier row of the pass makes it void."""
        _, response, live, num_guessed = self
        if response.trace.prefill_s == 0.0:
            response.trace.prefill_s = t_s
        # An earlier row may have ended the thread, or shown a guess to be wrong.
        if live.decodes and (num_guessed == 0 or response.guesses.confirm(live, num_guessed)):
            response.take(live, token, t_s=t_s)


@dataclass(slots=True)
class PassPlan:
    """A forward pass in the making."""

    parts: list[tuple[ActiveRequest, RequestSlice]] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)  # of each row's token in the pass
    rows: list[LogitsRow] = field(default_factory=list)
    decoding: list[ActiveRequest] = field(default_factory=list)
    computing: list[ActiveRequest] = field(default_factory=list)
    num_tokens: int = 0
    room: int = 0  # tokens that may still be computed for requests that do not decode yet
    spare_rows: int | None = None  # for threads beyond the first of each response; None: no bound

    def alone(self, active: ActiveRequest, part: RequestSlice) -> PassPlan:
        """Return the pass of one of its requests alone."""
        return PassPlan(
            [(active, replace(part, start=0, stop=part.stop - part.start))],
            [index - part.start for index in self.indices if part.start <= index < part.stop],
            [row for row in self.rows if row.active is active],
        )

    def keep(self, numbers: Container[int]) -> None:
        """Drop the rows of all requests but these."""
        pairs = zip(self.indices, self.rows, strict=True)
        kept = [(index, row) for index, row in pairs if row.active.number in numbers]
        self.indices, self.rows = [index for index, _ in kept], [row for _, row in kept]
        self.decoding = [active for active in self.decoding if active.number in numbers]
        self.computing = [active for active in self.computing if active.number in numbers]


class Planner:
    """Make the plan of each pass.

    Args:
        scheduler: Whose pages entries are placed in.
        device: Of the model.
        max_batch_tokens: Tokens of one pass beyond which prompts are cut into parts.
        chunk_tokens: Tokens of prompts beside threads that decode; None: as suits the device.
        max_rows: Threads of all responses that decode in a pass; None: as suits the device. While
            there are more, blocks wait as deferred ones do; a thread of each response always runs.
        is_paged: Passes are paged: they need no masks.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        device: torch.device,
        *,
        max_batch_tokens: int,
        chunk_tokens: int | None,
        max_rows: int | None,
        is_paged: bool,
    ) -> None:
        self._scheduler = scheduler
        self._device = device
        self._max_batch_tokens = max_batch_tokens
        own_chunk = CHUNK_TOKENS.get(device.type, CHUNK_TOKENS["cpu"])
        self._chunk_tokens = min(chunk_tokens or own_chunk, max_batch_tokens)
        self._max_rows = max_rows or MAX_ROWS.get(device.type, MAX_ROWS["cpu"])
        self._is_paged = is_paged

    def plan(
        self,
        requests: Mapping[int, ActiveRequest],
        apart: Callable[[ActiveRequest], AbstractContextManager[None]],
    ) -> PassPlan:
        """Plan the next pass: every scheduled request places its entries and has a part in it.

        Args:
            requests: The unfinished requests by their numbers.
            apart: Where a request is planned, so that an error ends this one only.
        """
        scheduled = [requests[ticket.arrival] for ticket in self._scheduler.schedule()]
        decoding = [active for active in scheduled if active.is_computed]
        plan = PassPlan(room=self._chunk_tokens if decoding else self._max_batch_tokens)
        counts = [
            sum(1 for _ in response.interpreter.runnable())
            for active in decoding
            for response in active.responses
        ]
        if sum(counts) > self._max_rows:
            plan.spare_rows = max(0, self._max_rows - sum(map(bool, counts)))
        for active in scheduled:
            if active.ticket.run is None:  # an older one took its pages
                continue
            with apart(active):
                if active.is_computed:
                    self._plan_decoding(plan, active)
                else:
                    self._plan_computing(plan, active)
        return plan

    def _plan_computing(self, plan: PassPlan, active: ActiveRequest) -> None:
        """Compute entries that are placed already: a prompt, or all of a preempted request."""
        ticket = active.ticket
        if active.run is not ticket.run:  # its keys begin anew, where they stood at first
            active.run = ticket.run
            for response in active.responses:
                response.trace.num_cached_tokens = ticket.num_shared or 0
            active.tensors = EntryTensors(active.entries, self._device)
        if plan.room <= 0 or not self._scheduler.reserve_pages(ticket, len(active.entries)):
            return
        first, stop = ticket.num_computed, min(ticket.num_computed + plan.room, len(active.entries))
        stop = active.tensors.chunk_stop(first, stop)
        self._add(plan, active, first, stop)
        plan.room -= stop - first
        plan.computing.append(active)
        if ticket.num_computed == len(active.entries) and not active.has_decoded:
            for response in active.responses:
                plan.indices.append(plan.num_tokens - 1)
                plan.rows.append(LogitsRow(active, response, response.live[0]))

    def _plan_decoding(self, plan: PassPlan, active: ActiveRequest) -> None:
        """Let every thread of a request feed its next tokens, or none if pages are missing."""
        feeding = [
            (response, live)
            for response in active.responses
            for live in self._threads_to_feed(plan, response)
        ]
        first = len(active.entries)
        num_new = sum(response.max_to_feed(live) for response, live in feeding)
        num_entries = min(first + num_new, active.ticket.largest_need)
        if not self._scheduler.reserve_pages(active.ticket, num_entries):
            return
        for response in active.responses:
            response.begin_pass()
        # Syncs come last: a sync sees all that the pass feeds, and it may move keys.
        feeding.sort(key=lambda pair: pair[1].joined is not None)
        index = {}
        for response, live in feeding:
            response.feed(live)
            index[response.sample, live.thread.id] = len(active.entries) - 1
        num_placed = len(active.entries)
        for response in active.responses:
            response.guesses.feed()
        if len(active.entries) > num_placed:
            active.first_guess = num_placed
        start = plan.num_tokens - first  # of the request's first slot in the pass
        for response in active.responses:
            for live in response.threads_to_decode():
                slots = [index[response.sample, live.thread.id], *response.guesses.slots(live)]
                for num_guessed, slot in enumerate(slots):
                    plan.indices.append(start + slot)
                    plan.rows.append(LogitsRow(active, response, live, num_guessed))
        plan.decoding.append(active)
        self._add(plan, active, first, len(active.entries))

    @staticmethod
    def _threads_to_feed(plan: PassPlan, response: Response) -> list[LiveThread]:
        if plan.spare_rows is None:
            return response.threads_to_feed()
        threads = response.threads_to_feed(1 + plan.spare_rows)
        num_more = max(0, sum(live.decodes for live in threads) - 1)
        plan.spare_rows = max(0, plan.spare_rows - num_more)
        return threads

    def _add(self, plan: PassPlan, active: ActiveRequest, first: int, stop: int) -> None:
        assert active.ticket.run is not None
        describe = active.tensors.sketch if self._is_paged else active.tensors.slice
        part = describe(plan.num_tokens, first, stop, active.ticket.run)
        plan.parts.append((active, part))
        plan.num_tokens += stop - first
        active.ticket.num_computed = stop
