"""The local engine: each step schedules, runs one forward pass, samples and interprets.

A pass serves many responses, each with many threads. The loop knows the order of things: memory is
the scheduler's, tensors the runner's, tokens the sampler's, threads the interpreter's.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pasta_lm.engines.cpu.library import MAX_ROWS, functions, torch_on_one_thread
from pasta_lm.engines.devices import free_memory
from pasta_lm.engines.gpu.decoder import PagedDecoder, paged_decoder
from pasta_lm.engines.grammars import Grammars
from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.planning import ActiveRequest, PassPlan, Planner, check_request
from pasta_lm.engines.local.rows import RowsRunner, as_rows
from pasta_lm.engines.local.scheduler import Scheduler
from pasta_lm.engines.passes.pool import LayerShape, Pool
from pasta_lm.engines.passes.runner import join_slices, plain_logits, run_batch
from pasta_lm.engines.passes.sampling import Choice, TokenMasks, choose, uniform_number
from pasta_lm.engines.request import (
    Answer,
    Failed,
    Finished,
    Request,
    SamplingParams,
    StreamEvent,
    unless_failed,
)
from pasta_lm.engines.response import Response
from pasta_lm.errors import DeviceMemoryError

DEFAULT_POOL_TOKENS = 16_384

LogitsHook = Callable[[Response, LiveThread, Choice, Tensor], None]
"""Called with the logits (float32 [V]) of each token before it is chosen."""


class TorchEngine:
    """Decode requests with a local model: ``submit`` and ``step``, or ``generate`` and ``stream``.

    ``pool_tokens`` are the cache entries of all requests together; the sizes of passes are those
    of ``Planner``. ``shares_prefixes`` computes common pages of prompts once: off where prompts are
    timed. ``captures`` runs the model as a flat list of operations if its logits are the same,
    which decodes faster and starts a second later. ``paged`` attention runs on a GPU with Triton
    if it is None. ``on_logits`` is for tests and analysis.
    """

    is_remote = False
    served_names: Mapping[str, Sequence[str]] = {}

    def __init__(
        self, loaded: LoadedModel, *, pool_tokens: int = DEFAULT_POOL_TOKENS,
        max_batch_tokens: int | None = None, chunk_tokens: int | None = None,
        shares_prefixes: bool = False, captures: bool = True, max_rows: int | None = None,
        paged: bool | None = None, on_logits: LogitsHook | None = None,
    ) -> None:  # fmt: skip
        self.loaded = loaded
        # Rows keep keys in their own caches: their pool only counts slots.
        shapes = [LayerShape(1, 1, 1)] if loaded.reader else loaded.layer_shapes
        self.pool = Pool(shapes, pool_tokens, dtype=loaded.dtype, device=loaded.device)
        self.scheduler = Scheduler(self.pool, shares_prefixes=shares_prefixes and not loaded.reader)
        self.num_passes = 0
        logits = loaded.logits if captures else partial(plain_logits, loaded.model)
        has_functions = loaded.device.type == "cpu" and functions() is not None
        self._is_compiled = captures and has_functions and loaded.fast_logits is not None
        self.run_batch = partial(run_batch, logits, self.pool)
        self.rows = None if loaded.reader is None else RowsRunner(loaded.reader)
        self.masks = TokenMasks(loaded.vocabulary, loaded.eos_ids, loaded.vocab_size, loaded.device)
        self.grammars = Grammars(loaded.vocabulary, loaded.vocab_size, [*loaded.eos_ids])
        self.paged: PagedDecoder | None = None  # None: passes run over views of the pool
        if not loaded.reader and (paged or (paged is None and loaded.device.type == "cuda")):
            num_heads = int(loaded.model.config.get_text_config().num_attention_heads)
            self.paged = paged_decoder(logits, self.pool, self.masks, num_heads)
        self._planner = Planner(
            self.scheduler, loaded.device, max_batch_tokens=max_batch_tokens,
            chunk_tokens=chunk_tokens, max_rows=max_rows,
        )  # fmt: skip
        last = loaded.max_position
        self.max_prompt_tokens = last if last is None else last + 1
        self._on_logits = on_logits
        self.active: dict[int, ActiveRequest] = {}  # the unfinished requests by their numbers
        self.unread: dict[int, deque[StreamEvent | Failed]] = {}
        self._errors: dict[int, Exception] = {}  # in this step, by the requests that they ended

    def warm_up(self, max_rows: int = 16, max_entries: int | None = None) -> None:
        """Capture a GPU's passes now, so that the first requests do not wait."""
        if self.paged is not None:
            num_slots = self.pool.num_slots
            sampling = SamplingParams(**self.loaded.sampling)  # type: ignore[arg-type]
            draws = sampling.temperature > 0 if sampling.repetition_penalty == 1 else None
            self.paged.prepare(max_rows, min(num_slots, max_entries or num_slots), draws)

    @property
    def num_shapes(self) -> int:
        """Return the number of captured shapes; a timing during which it grew has a capture."""
        return 0 if self.paged is None else self.paged.num_shapes

    @property
    def has_work(self) -> bool:
        return bool(self.active)

    def submit(self, request: Request) -> int:
        """Queue a request, return its number; a ``RequestError`` if it can never be decoded."""
        check_request(request, self.loaded)
        request = request if self.rows is None else as_rows(request)
        for name, form in request.structures:
            self.grammars.matcher(form, name)
        params = request.params.resolved(secrets.randbits(63), self.loaded.fork_bias)
        request = replace(request, params=params)
        ticket = self.scheduler.submit(len(request.prompt), request.max_entries, request.prompt)
        active = ActiveRequest.begin(request, ticket, self.loaded, self.grammars.matcher)
        self.active[ticket.arrival] = active
        return ticket.arrival

    def cancel(self, number: int) -> list[StreamEvent]:
        if (active := self.active.pop(number, None)) is None:
            return []
        now = time.perf_counter() - active.began_s
        for response in active.responses:
            response.abort(now)
        self.scheduler.release(active.ticket)
        return active.drain()

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        answers, numbers = dict[tuple[int, int], Answer](), list[int]()
        try:
            for request in requests:
                numbers.append(self.submit(request))
            while any(number in self.active for number in numbers):
                pairs = [(n, unless_failed(event)) for n, event in self._advance() if n in numbers]
                answers |= {(n, e.sample): e.answer for n, e in pairs if isinstance(e, Finished)}
        finally:
            for number in numbers:
                self.cancel(number)
        return [[answers[key] for key in sorted(answers) if key[0] == n] for n in numbers]

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        number = self.submit(request)
        unread = self.unread[number] = deque()
        try:
            while unread or number in self.active:
                if not unread:
                    self._advance()
                while unread:
                    yield unless_failed(unread.popleft())
        finally:
            self.cancel(number)
            del self.unread[number]

    def close(self) -> None:
        for number in list(self.active):
            self.cancel(number)
        if self.paged is not None:
            self.paged.close()
        self.pool.close()
        free_memory()

    def _advance(self) -> list[tuple[int, StreamEvent | Failed]]:
        events = self.step()  # those of each open stream are kept until it is read
        for number, event in events:
            if number in self.unread:
                self.unread[number].append(event)
        return events

    def step(self) -> list[tuple[int, StreamEvent | Failed]]:
        """Run one forward pass and return its events, each with the number of its request.

        A request that an error concerns is freed and has ``Failed`` as its only event. An error
        that concerns all of them frees all before it is raised.
        """
        self._errors.clear()
        try:
            plan = self._planner.plan(self.active, self._apart)
            if self._errors:
                plan.keep(self.active)
            if plan.spans:
                tokens = self._tokens(plan)
                self.num_passes += 1
                for active in plan.computing:
                    self.scheduler.computed(active.ticket)
                self._interpret(plan, tokens)
            return self._collect()
        except BaseException:  # also an interrupt: the engine stays usable
            for number, error in self._errors.items():
                self.unread.get(number, deque()).append(Failed(error))
            for number in list(self.active):
                self.unread.get(number, deque()).extend(self.cancel(number))
            raise

    @contextmanager
    def _apart(self, active: ActiveRequest) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if len(self.active) == 1:
                raise
            self._errors[active.number] = error
            self.scheduler.release(self.active.pop(active.number).ticket)

    def _tokens(self, plan: PassPlan) -> list[int]:
        # If the pass fails, each request runs alone, and fails alone. Keys are written again.
        try:
            return self._run(plan)
        except Exception:
            if len(self.active) == 1:
                raise
        tokens: list[int] = []
        for active, span in plan.spans:
            with self._apart(active):
                tokens += self._run(plan.only([(active, span)]))
        plan.keep(self.active)
        return tokens

    def _run(self, plan: PassPlan) -> list[int]:
        # Prompts run over views, by attention that is made for them, and apart from what decodes.
        few = [pair for pair in plan.spans if pair[0] not in plan.computing]
        is_paged = self.paged is not None and self.paged.takes([span.num_rows for _, span in few])
        is_small = self._is_compiled and sum(span.num_rows for _, span in plan.spans) <= MAX_ROWS
        try:
            if not is_paged or len(few) == len(plan.spans):
                with torch_on_one_thread() if is_small else nullcontext():
                    return self._run_whole(plan, is_paged=is_paged)
            plans = plan.only(few), plan.only([pair for pair in plan.spans if pair not in few])
            chosen = [self._run_whole(some, is_paged=some is plans[0]) for some in plans]
            plan.rows = [row for some in plans for row in some.rows]
            return [token for tokens in chosen for token in tokens]
        except torch.OutOfMemoryError as exc:
            model = sum(weight.nbytes for weight in self.loaded.model.parameters()) / 1e9
            sizes = f"; the model has {model:.1f} GB, the cache {self.pool.num_bytes / 1e9:.1f}"
            raise DeviceMemoryError(exc, sizes) from exc

    def _run_whole(self, plan: PassPlan, *, is_paged: bool) -> list[int]:
        choices = [self._choice(row.response, row.live, row.num_guessed) for row in plan.rows]
        if self.rows is not None:
            return self._choose(plan, choices, self.rows.run(plan.spans, plan.indices))
        if self.paged is None or not is_paged:
            slices = [(active.entries, active.tensors.slice(span)) for active, span in plan.spans]
            batch = join_slices(slices, plan.indices, self.loaded.device)
            return self._choose(plan, choices, self.run_batch(batch))
        parts = [(active.tensors, span) for active, span in plan.spans]
        logits_WV, tokens = self.paged.run(parts, plan.indices, choices)
        wants = (row.is_read for row in plan.rows)
        if tokens is not None and self._on_logits is None and not any(wants):
            return tokens
        return self._choose(plan, choices, logits_WV, tokens)

    def _interpret(self, plan: PassPlan, tokens: Sequence[int]) -> None:
        now = time.perf_counter()
        for active in plan.decoding:
            for response in active.responses:
                if not response.is_finished:
                    response.passed(now - active.began_s)
        for row, token in zip(plan.rows, tokens, strict=True):
            if row.active.number in self.active:  # an earlier row may have ended it
                with self._apart(row.active):
                    row.take(token, now - row.active.began_s)
        for active in plan.decoding:
            moves = active.settle() if active.number in self.active else []
            if moves and active.ticket.run is not None:
                self.pool.move_slots(active.ticket.run, moves)

    def _choose(
        self, plan: PassPlan, choices: Sequence[Choice], logits_WV: Tensor,
        tokens: list[int] | None = None,
    ) -> list[int]:  # fmt: skip
        if not plan.rows:
            return []
        if self._on_logits is not None:
            for logits_V, row, choice in zip(logits_WV, plan.rows, choices, strict=True):
                self._on_logits(row.response, row.live, choice, logits_V)
        tokens = tokens or choose(logits_WV, choices, self.masks)
        for row, logits_V, choice, token in zip(plan.rows, logits_WV, choices, tokens, strict=True):
            row.note(logits_V, token, choice.allowed)
        return tokens

    def _choice(self, response: Response, live: LiveThread, num_guessed: int = 0) -> Choice:
        params, uniform, seen = response.request.params, 0.0, None
        if params.temperature > 0:
            assert params.seed is not None
            index = live.thread.num_tokens + num_guessed
            uniform = uniform_number(params.seed, response.sample, live.thread.path, index)
        if params.repetition_penalty != 1.0:
            seen = torch.tensor([*response.contexts.penalised_ids(live, num_guessed)]).long()
        legal = response.legal(live, num_guessed)
        added = response.contexts.added_to_logits(live, num_guessed)
        can_fork = live.thread.is_main and self.loaded.vocabulary.has_pieces
        bias = can_fork * (params.fork_bias or 0.0)
        allowed = None if live.matcher is None else live.matcher.allowed(live.guesses[:num_guessed])
        return Choice(params, legal, uniform, seen, added, bias, allowed)

    def _collect(self) -> list[tuple[int, StreamEvent | Failed]]:
        events: list[tuple[int, StreamEvent | Failed]]
        events = [(number, Failed(error)) for number, error in self._errors.items()]
        for number, active in list(self.active.items()):
            events += [(number, event) for event in active.drain()]
            if active.is_finished:
                self.scheduler.release(active.ticket, active.plain_text())
                del self.active[number]
        return events
