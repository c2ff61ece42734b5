"""A request in the local engine: checks on its way in, and its state.

Checks and bounds read the request and the model, never the load.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from pasta_lm.engines.local.batch import EntryTensors
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.pool import Run
from pasta_lm.engines.local.scheduler import Ticket
from pasta_lm.engines.request import Guesser, Request, StreamEvent
from pasta_lm.engines.response import Response
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.join import check_join
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.interpreter.trace import Kind
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
    if request.guesser is not None:
        if request.expansion or request.form is not Form.MAIN:
            raise RequestError(
                f"strategy {request.strategy!r} decodes no guesses",
                hint="leave them out, or answer sequentially or with pasta",
            )
        request.guesser.check(loaded.vocabulary.num_tokens, loaded.name)
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


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """The guesses of another guesser, up to the first that is no token of the model."""

    guesser: Guesser
    num_tokens: int

    @property
    def max_guesses(self) -> int:
        """Return that of the other guesser."""
        return self.guesser.max_guesses

    def check(self, num_tokens: int, name: str) -> None:
        """Check the other guesser."""
        self.guesser.check(num_tokens, name)

    def guess(self, context: Sequence[int]) -> Sequence[int]:
        """Return the known ones of the other guesser's tokens."""
        guesses = self.guesser.guess(context)
        return tuple(takewhile(lambda token: 0 <= token < self.num_tokens, guesses))


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
    def begin(cls, request: Request, ticket: Ticket, loaded: LoadedModel) -> ActiveRequest:
        """Return a request before its first pass."""
        kind = loaded.kind if request.forced is None else Kind.REPLAYED
        entries = Entries.of_prompt(request.prompt)
        responses = [
            Response(
                request,
                sample,
                entries,
                loaded.vocabulary,
                limits=request.limits(loaded.max_position),
                trace=request.new_trace(kind, engine="torch", model=loaded.name),
                eos_ids=loaded.eos_ids,
            )
            for sample in range(request.params.n)
        ]
        tensors = EntryTensors(entries, loaded.device)
        began_s = time.perf_counter()
        return cls(ticket.arrival, request, entries, ticket, responses, tensors, began_s)

    def drain(self) -> list[StreamEvent]:
        """Return the events of all samples since the last call."""
        return [event for response in self.responses for event in response.drain()]

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
        right = [
            (response, thread, placement)
            for response in self.responses
            for thread, placement in response.guesses.settle()
        ]
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
