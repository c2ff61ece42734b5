"""A forward pass in the making: whose entries it computes, which rows give whose tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pasta_lm.engines.request import Request
from pasta_lm.engines.torch.batch import EntryTensors, RequestSlice
from pasta_lm.engines.torch.lane import Lane
from pasta_lm.engines.torch.response import Response
from pasta_lm.engines.torch.scheduler import Ticket
from pasta_lm.interpreter.entries import Entries


@dataclass(slots=True, eq=False)
class Running:
    """A request in the engine."""

    number: int
    request: Request
    entries: Entries
    ticket: Ticket
    responses: list[Response]
    tensors: EntryTensors
    began_s: float

    @property
    def is_finished(self) -> bool:
        """Tell whether all its samples are complete."""
        return all(response.is_finished for response in self.responses)

    @property
    def has_decoded(self) -> bool:
        """Tell whether its first tokens have been chosen."""
        return len(self.entries) > len(self.request.prompt) or any(
            lane.next_token is not None for response in self.responses for lane in response.lanes
        )


class Wanted(NamedTuple):
    """Whose token a row of logits gives."""

    running: Running
    response: Response
    lane: Lane
    num_guessed: int = 0
    """It counts only if so many guesses before it were right."""


@dataclass(slots=True)
class PassPlan:
    """A forward pass in the making."""

    parts: list[tuple[Entries, RequestSlice]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """Indices of the tokens whose logits are wanted."""
    wanted: list[Wanted] = field(default_factory=list)
    """For each of these rows whose token it gives."""
    decoding: list[Running] = field(default_factory=list)
    """Requests that take a step in this pass, beside those that compute entries for later."""
    num_tokens: int = 0
