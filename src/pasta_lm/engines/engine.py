"""The interface of every engine that holds a model: the local one and stock servers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pasta_lm.engines.request import Answer, Failed, Request, StreamEvent
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.interpreter.trace import Kind

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary  # loads tokenizers


class ModelFacts(Protocol):
    """What is known of a model wherever its weights are."""

    @property
    def name(self) -> str | None:
        """Return its name; None: as the servers call it."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Return its tokens and tag pieces."""

    @property
    def eos_ids(self) -> Collection[int]:
        """Return all ids that end main."""

    @property
    def max_position(self) -> int | None:
        """Return the last position that it may be given; None: any."""

    @property
    def positions(self) -> PositionStrategy:
        """Return the position strategy of its training."""

    @property
    def trained_strategy(self) -> str:
        """Return the strategy of its training, if it has tag pieces."""

    @property
    def kind(self) -> Kind:
        """Return the kind of the answers that it generates."""

    @property
    def device(self) -> object:
        """Return the place of its weights."""

    @property
    def dtype_name(self) -> str:
        """Return the type of its weights."""

    def join_with(self, positions: PositionStrategy) -> Join:
        """Return the join of its training, as far as it goes with positions."""


class Engine(Protocol):
    """Decodes requests with one model; ``submit`` and ``step``, or ``generate`` and ``stream``."""

    @property
    def loaded(self) -> ModelFacts:
        """Return the facts of the model."""

    @property
    def max_prompt_tokens(self) -> int | None:
        """Return the largest number of tokens of a prompt; None: any."""

    @property
    def is_remote(self) -> bool:
        """Return whether servers decode: no forced tokens, no weights and no cache here."""

    @property
    def served_names(self) -> Mapping[str, Sequence[str]]:
        """Return by the address of each server the names that it gives its model."""

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished."""

    def submit(self, request: Request) -> int:
        """Queue a request and return its number; a ``RequestError`` if it cannot be decoded."""

    def step(self) -> list[tuple[int, StreamEvent | Failed]]:
        """Go on, and return the events since the last call, each with its request's number."""

    def cancel(self, number: int) -> list[StreamEvent]:
        """Give a request up and return its last events; unknown and finished ones are ignored."""

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Decode requests together and return each one's samples, in order."""

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        """Decode one request and yield its events; closing the iterator gives it up."""
