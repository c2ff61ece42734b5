"""The local engine: step() schedules, runs, samples, interprets.

Many responses at once, each with many threads, in one forward pass. The loop knows the order of
things and nothing else: memory is the scheduler's, tensors the runner's, tokens the sampler's,
threads the interpreter's.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pasta_lm.engines.request import Answer, Capabilities, Finished, Request, StreamEvent
from pasta_lm.engines.torch.admission import check_request, known_tokens, limits_of
from pasta_lm.engines.torch.batch import Batch, EntryTensors, join_slices
from pasta_lm.engines.torch.lane import Lane
from pasta_lm.engines.torch.loading import LoadedModel
from pasta_lm.engines.torch.plan import PassPlan, Running, Wanted
from pasta_lm.engines.torch.pool import Pool
from pasta_lm.engines.torch.response import Response
from pasta_lm.engines.torch.runner import Runner
from pasta_lm.engines.torch.sampling import Choice, TokenMasks, choose, uniform_number
from pasta_lm.engines.torch.scheduler import Scheduler
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind, Trace

DEFAULT_POOL_TOKENS = 16_384

LogitsHook = Callable[[Response, Lane, Tensor], None]
"""Sees the logits (float32 [V]) from which each token is chosen, before it is."""


class TorchEngine:
    """Decode requests with a local model.

    Call ``submit`` and ``step``, or let ``generate`` and ``stream`` do it.
    """

    capabilities = Capabilities(exact=True, token_ids=True, logits=True)

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        pool_tokens: int = DEFAULT_POOL_TOKENS,
        max_batch_tokens: int = 2048,
        overcommit: bool = False,
        captures: bool = True,
        on_logits: LogitsHook | None = None,
    ) -> None:
        """Give a loaded model memory.

        Args:
            loaded: The model.
            pool_tokens: Cache entries for all requests together.
            max_batch_tokens: Tokens of one pass beyond which prompts are cut into chunks.
            overcommit: See ``Scheduler``.
            captures: Run the model as a flat list of operations where that is the same; False
                runs its modules, which starts a second or more sooner and decodes slower.
            on_logits: For tests and analysis.
        """
        self.loaded = loaded
        self.pool = Pool(loaded.layer_shapes, pool_tokens, dtype=loaded.dtype, device=loaded.device)
        self.scheduler = Scheduler(self.pool, overcommit=overcommit)
        self.num_passes = 0
        captured = loaded.captured if captures else None
        self._runner = Runner(loaded.model, self.pool, captured)
        self._masks = TokenMasks(
            loaded.vocabulary, loaded.eos_ids, loaded.vocab_size, loaded.device
        )
        self._max_batch_tokens = max_batch_tokens
        self._on_logits = on_logits
        self._requests: dict[int, Running] = {}
        self._unread: dict[int, deque[StreamEvent]] = {}
        self._num_submitted = 0

    # Asking

    @property
    def has_work(self) -> bool:
        """Tell whether a request is unfinished."""
        return bool(self._requests)

    def submit(self, request: Request) -> int:
        """Queue a request and return its number.

        Raises:
            RequestError: the prompt is empty, longer than the context, larger than the pool or
                of tokens that the model does not have; 'oracle' positions without an answer.
            UnsupportedModelError: positions 'rotate' on a model whose keys cannot be moved.
        """
        check_request(request, self.loaded)
        may_fork = request.forks or request.forced is not None
        if may_fork and request.positions is PositionStrategy.ROTATE:
            self._runner.rotations = self.loaded.rotations
        if request.params.seed is None:
            fresh = replace(request.params, seed=secrets.randbits(63))
            request = replace(request, params=fresh)
        if request.guess is not None:
            known = known_tokens(request.guess, self.loaded.num_tokens)
            request = replace(request, guess=known)
        num_prompt, params = len(request.prompt), request.params
        need = num_prompt + params.n * params.max_tokens
        ticket = self.scheduler.submit(num_prompt, need)
        entries = Entries.of_prompt(request.prompt)
        responses = [self._response(request, entries, sample) for sample in range(params.n)]
        tensors = EntryTensors(entries, self.loaded.device)
        number, self._num_submitted = self._num_submitted, self._num_submitted + 1
        now = time.perf_counter()
        self._requests[number] = Running(number, request, entries, ticket, responses, tensors, now)
        return number

    def _response(self, request: Request, entries: Entries, sample: int) -> Response:
        loaded = self.loaded
        trace = Trace(
            kind=loaded.kind if request.forced is None else Kind.REPLAYED,
            model=loaded.name,
            engine="torch",
            strategy=request.strategy,
            positions=request.positions.value,
            num_prompt_tokens=len(request.prompt),
        )
        limits = limits_of(request, loaded)
        return Response(request, sample, entries, loaded.vocabulary, loaded.eos_ids, limits, trace)

    def abort(self, number: int) -> list[StreamEvent]:
        """Give a request up; its pages are free at once. Unknown or finished: nothing happens."""
        running = self._requests.pop(number, None)
        if running is None:
            return []
        now = time.perf_counter() - running.began_s
        for response in running.responses:
            response.abort(now)
        self.scheduler.release(running.ticket)
        return [event for response in running.responses for event in response.drain()]

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Decode requests together and return each one's samples, in order."""
        answers: dict[int, dict[int, Answer]] = {}
        try:
            for request in requests:
                answers[self.submit(request)] = {}
            while any(number in self._requests for number in answers):
                for number, event in self._advance():
                    if isinstance(event, Finished) and number in answers:
                        answers[number][event.sample] = event.answer
        finally:
            for number in answers:
                self.abort(number)
        return [[done[sample] for sample in sorted(done)] for done in answers.values()]

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        """Decode one request and yield its events; closing the iterator aborts it."""
        number = self.submit(request)
        unread = self._unread[number] = deque()
        try:
            while unread or number in self._requests:
                if not unread:
                    self._advance()
                while unread:
                    yield unread.popleft()
        finally:
            self.abort(number)
            del self._unread[number]

    def _advance(self) -> list[tuple[int, StreamEvent]]:
        """Run one pass; keep what belongs to a stream until that stream is read."""
        events = self.step()
        for number, event in events:
            if number in self._unread:
                self._unread[number].append(event)
        return events

    # The loop

    def step(self) -> list[tuple[int, StreamEvent]]:
        """Run one forward pass; return what happened, with each request's number.

        An error frees all requests before it is raised.
        """
        try:
            plan = self._plan()
            if plan.parts:
                logits = self._runner.run(self._batch(plan))
                self.num_passes += 1
                self._interpret(plan, logits)
        except BaseException:
            for number in list(self._requests):
                self._unread.get(number, deque()).extend(self.abort(number))
            raise
        return self._collect()

    def _plan(self) -> PassPlan:
        by_ticket = {id(running.ticket): running for running in self._requests.values()}
        plan = PassPlan()
        for ticket in self.scheduler.schedule():
            running = by_ticket[id(ticket)]
            if ticket.num_computed < len(running.entries):
                self._plan_computing(plan, running)
            else:
                self._plan_decoding(plan, running)
        return plan

    def _plan_computing(self, plan: PassPlan, running: Running) -> None:
        """Compute entries that are placed already: a prompt, or all of a preempted request."""
        ticket = running.ticket
        if ticket.num_computed == 0:
            running.tensors = EntryTensors(running.entries, self.loaded.device)
        room = self._max_batch_tokens - plan.num_tokens
        if room <= 0 or not self.scheduler.reserve_pages(ticket, len(running.entries)):
            return
        first, stop = ticket.num_computed, min(ticket.num_computed + room, len(running.entries))
        self._add(plan, running, first, running.tensors.chunk_stop(first, stop))
        if ticket.num_computed == len(running.entries) and not running.has_decoded:
            for response in running.responses:
                plan.rows.append(plan.num_tokens - 1)
                plan.wanted.append(Wanted(running, response, response.lanes[0]))

    def _plan_decoding(self, plan: PassPlan, running: Running) -> None:
        """Let every thread of a request feed what it has, or (gang rule) none."""
        feeding = [
            (response, lane) for response in running.responses for lane in response.lanes_to_feed()
        ]
        first = len(running.entries)
        num_new = sum(lane.num_to_feed for _, lane in feeding)
        if not self.scheduler.reserve_pages(running.ticket, first + num_new):
            return
        feeding.sort(key=lambda pair: pair[1].joined is not None)  # syncs see all that is fed
        row = {}
        for response, lane in feeding:
            row[id(lane)] = plan.num_tokens + len(running.entries) - first + len(lane.given)
            response.feed(lane)
        for response in running.responses:
            for lane in response.lanes_to_decode():
                for num_guessed in range(len(lane.guesses) + 1):
                    plan.rows.append(row[id(lane)] + num_guessed)
                    plan.wanted.append(Wanted(running, response, lane, num_guessed))
        plan.decoding.append(running)
        self._add(plan, running, first, len(running.entries))

    def _add(self, plan: PassPlan, running: Running, first: int, stop: int) -> None:
        assert running.ticket.run is not None
        part = running.tensors.slice(plan.num_tokens, first, stop, running.ticket.run)
        plan.parts.append((running.entries, part))
        plan.num_tokens += stop - first
        running.ticket.num_computed = stop

    def _batch(self, plan: PassPlan) -> Batch:
        return join_slices(plan.parts, plan.rows, self.loaded.device)

    def _interpret(self, plan: PassPlan, logits_WV: Tensor) -> None:
        tokens = self._choose(plan, logits_WV)
        now = time.perf_counter()
        for running in plan.decoding:
            for response in running.responses:
                if not response.is_finished:
                    response.passed(now - running.began_s)
        for (running, response, lane, num_guessed), token in zip(plan.wanted, tokens, strict=True):
            if response.trace.prefill_s == 0.0:
                response.trace.prefill_s = now - running.began_s
            if lane.decodes and (num_guessed == 0 or response.confirm(lane, num_guessed)):
                response.take(lane, token, t_s=now - running.began_s)
        for running in plan.decoding:
            self._take_back(running)

    def _take_back(self, running: Running) -> None:
        """Take wrong guesses out of the cache: what is fed next overwrites them."""
        if any([response.take_back() for response in running.responses]):
            running.ticket.num_computed = len(running.entries)
            running.tensors.truncate(len(running.entries))

    def _choose(self, plan: PassPlan, logits_WV: Tensor) -> list[int]:
        if not plan.wanted:
            return []
        if self._on_logits is not None:
            for row, wanted in zip(logits_WV, plan.wanted, strict=True):
                self._on_logits(wanted.response, wanted.lane, row)
        choices = [self._choice(*wanted[1:]) for wanted in plan.wanted]
        return choose(logits_WV, choices, self._masks)

    def _choice(self, response: Response, lane: Lane, num_guessed: int = 0) -> Choice:
        params, uniform, seen = response.request.params, 0.0, None
        if params.temperature > 0:
            assert params.seed is not None
            index = lane.thread.num_tokens + num_guessed
            uniform = uniform_number(params.seed, response.sample, lane.thread.path, index)
        if params.repetition_penalty != 1.0:
            ids = sorted(lane.seen.union(lane.guesses[:num_guessed]))
            seen = torch.tensor(ids, dtype=torch.int64, device=self.loaded.device)
        return Choice(params, response.legal(lane), uniform, seen)

    def _collect(self) -> list[tuple[int, StreamEvent]]:
        events = [
            (number, event)
            for number, running in self._requests.items()
            for response in running.responses
            for event in response.drain()
        ]
        for running in [r for r in self._requests.values() if r.is_finished]:
            self.scheduler.release(running.ticket)
            del self._requests[running.number]
        return events
