"""A request in the local engine: checks on its way in, its state, its part of a forward pass.

Checks and bounds read the request and the model, never the load.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple

from torch import Tensor

from pasta_lm.engines.live_thread import LiveThread
from pasta_lm.engines.request import Guess, Request
from pasta_lm.engines.response import Response
from pasta_lm.engines.torch.batch import EntryTensors, RequestSlice
from pasta_lm.engines.torch.loading import LoadedModel
from pasta_lm.engines.torch.pool import Run
from pasta_lm.engines.torch.sampling import token_logprobs
from pasta_lm.engines.torch.scheduler import Ticket
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.join import check_join
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind, Trace
from pasta_lm.language.parser import Form


def check_request(request: Request, loaded: LoadedModel) -> None:
    """Refuse a request that would fail in the middle of a pass, and every other one with it.

    Raises:
        RequestError: the prompt is empty, longer than the context or of tokens that the model
            does not have; positions 'oracle' without an answer; a join that does not go with the
            positions.
    """
    last = loaded.max_position
    if not request.prompt:
        raise RequestError("the prompt is empty", hint="give at least one token")
    if last is not None and len(request.prompt) > last + 1:
        raise RequestError(
            f"the prompt has {len(request.prompt)} tokens, the model's context is {last + 1}",
            hint="shorten the prompt",
        )
    _check_tokens(request, loaded.num_tokens)
    if request.guess is not None and (request.expansion or request.form is not Form.MAIN):
        raise RequestError(
            f"strategy {request.strategy!r} decodes no guesses",
            hint="leave them out, or answer sequentially or with pasta",
        )
    if request.positions is PositionStrategy.ORACLE and request.forced is None:
        raise RequestError(
            "positions 'oracle' need the length of every block, which only a given answer has",
            hint="use positions 'predict', 'continue' or 'rotate'",
        )

    try:
        check_join(request.join, request.positions)
    except UsageError as exc:
        raise RequestError(exc.message, hint=exc.hint) from exc


def _check_tokens(request: Request, num_tokens: int) -> None:
    ids = set(request.prompt)
    if request.forced is not None:
        ids.update(request.forced.main, *request.forced.blocks)
    if min(ids) < 0 or max(ids) >= num_tokens:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise RequestError(
            f"there is no token {wrong}: the model has {num_tokens} tokens",
            hint="encode text with the vocabulary of the same model",
        )


def known_tokens(guess: Guess, num_tokens: int) -> Guess:
    """Return the same guesses up to the first that is no token of the model."""
    return lambda ids: tuple(takewhile(lambda one: 0 <= one < num_tokens, guess(ids)))


def new_response(request: Request, entries: Entries, sample: int, loaded: LoadedModel) -> Response:
    """Return a sample of a request before its first token."""
    trace = Trace(
        kind=loaded.kind if request.forced is None else Kind.REPLAYED,
        model=loaded.name,
        engine="torch",
        strategy=request.strategy,
        positions=request.positions.value,
        join=request.join.value,
        num_prompt_tokens=len(request.prompt),
    )
    return Response(
        request,
        sample,
        entries,
        loaded.vocabulary,
        limits=request.limits(loaded.max_position),
        trace=trace,
        eos_ids=loaded.eos_ids,
    )


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

    @property
    def is_finished(self) -> bool:
        """Return whether all its samples are complete."""
        return all(response.is_finished for response in self.responses)

    def settle(self) -> list[tuple[int, int]] | None:
        """Remove the wrong guesses of a pass, and let the right ones move up.

        Returns:
            The slots before and after of those that moved; None if there were no guesses.
        """
        first, self.first_guess = self.first_guess, None
        if first is None:
            return None
        right = [(one, *pair) for one in self.responses for pair in one.settle()]
        slots = sorted(placement.slot for _, _, placement in right)
        self.entries.keep(first, slots)
        now = {slot: index for index, slot in enumerate(slots, start=first)}
        for response, thread, placement in right:
            response.keep_guess(thread, replace(placement, slot=now[placement.slot]))
        self.ticket.num_computed = len(self.entries)
        self.tensors.truncate(first)
        return [pair for pair in now.items() if pair[0] != pair[1]]

    @property
    def is_computed(self) -> bool:
        """Return whether all its entries so far are in the pool, so that its threads can decode."""
        return self.ticket.num_computed >= len(self.entries)

    @property
    def has_decoded(self) -> bool:
        """Return whether its first tokens have been chosen."""
        return len(self.entries) > len(self.request.prompt) or any(
            live.next_token is not None
            for response in self.responses
            for live in response.live.values()
        )


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
        if live.decodes and (num_guessed == 0 or response.confirm(live, num_guessed)):
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
    running: dict[tuple[int, int], int] = field(default_factory=dict)
    """Threads that decode, by number of request and sample."""
    room: int = 0  # tokens that may still be computed for requests that do not decode yet

    def alone(self, active: ActiveRequest, part: RequestSlice) -> PassPlan:
        """Return the pass of one of its requests alone."""
        return PassPlan(
            [(active, replace(part, start=0, stop=part.stop - part.start))],
            [one - part.start for one in self.indices if part.start <= one < part.stop],
            [row for row in self.rows if row.active is active],
        )

    def keep(self, numbers: Container[int]) -> None:
        """Forget what is wanted of all requests but these."""
        pairs = zip(self.indices, self.rows, strict=True)
        kept = [(index, row) for index, row in pairs if row.active.number in numbers]
        self.indices, self.rows = [index for index, _ in kept], [row for _, row in kept]
        self.decoding = [active for active in self.decoding if active.number in numbers]
        self.computing = [active for active in self.computing if active.number in numbers]
