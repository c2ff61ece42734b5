"""Where tokens come from: the interface of every engine, the local one and stock servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pasta_lm.engines.request import Answer, Failed, Request, StreamEvent
    from pasta_lm.interpreter.positions import Join, PositionStrategy
    from pasta_lm.interpreter.trace import Kind
    from pasta_lm.language.events import Lexeme
    from pasta_lm.models.vocabulary import Vocabulary

Prompt = str | Sequence[Mapping[str, object]]
"""A text is the user's message; messages have ``role`` and ``content``."""


class TokenText(Protocol):
    """The text of one thread's tokens, as they come in."""

    def feed(self, token_id: int) -> str: ...  # the characters that this token completes
    def close(self) -> str: ...  # those held back; a tag or the end of the thread follows


class Tokens(Protocol):
    """The token ids of an engine: those of a model's vocabulary, or numbered words."""

    def piece_id(self, piece: str) -> int: ...
    def id_to_lexeme(self, token_id: int) -> Lexeme | None: ...  # None for an ordinary token
    def text_stream(self) -> TokenText: ...  # the decoder of one thread


class ModelFacts(Protocol):
    """What is known of a model wherever its weights are."""

    @property
    def name(self) -> str | None: ...  # None: as the servers call it
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def eos_ids(self) -> Collection[int]: ...  # all ids that end main
    @property
    def max_position(self) -> int | None: ...  # the last position that it may be given; None: any
    @property
    def positions(self) -> PositionStrategy: ...  # that it was trained with
    @property
    def trained_strategy(self) -> str: ...  # if it has tag pieces
    @property
    def fork_bias(self) -> float: ...  # that its training chose
    @property
    def sampling(self) -> Mapping[str, float]: ...  # its authors', as fields of SamplingParams
    @property
    def kind(self) -> Kind: ...  # how its answers come about
    @property
    def device(self) -> object: ...
    @property
    def dtype_name(self) -> str: ...
    def join_with(self, positions: PositionStrategy) -> Join: ...  # the trained one, if it fits


class Engine(Protocol):
    """Decodes requests with one model; ``submit`` and ``step``, or ``generate`` and ``stream``."""

    @property
    def loaded(self) -> ModelFacts: ...
    @property
    def max_prompt_tokens(self) -> int | None: ...  # None: any
    @property
    def is_remote(self) -> bool: ...  # servers decode: no forced tokens, weights or cache here
    @property
    def served_names(self) -> Mapping[str, Sequence[str]]: ...  # the model's, by server address
    @property
    def has_work(self) -> bool: ...  # a request is unfinished

    # A number names a request; a ``RequestError`` if it cannot be decoded.
    def submit(self, request: Request) -> int: ...
    # Goes on; the events since the last call, each with its request's number.
    def step(self) -> list[tuple[int, StreamEvent | Failed]]: ...
    # Gives a request up; its last events. Unknown and finished ones are ignored.
    def cancel(self, number: int) -> list[StreamEvent]: ...
    # Decodes requests together; each one's samples, in order.
    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]: ...
    def stream(self, request: Request) -> Iterator[StreamEvent]: ...  # closing it gives it up
    def close(self) -> None: ...  # gives up what was submitted, and disconnects from servers
