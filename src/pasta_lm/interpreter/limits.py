"""The bounds of one response; they read its request and its own steps, never the load."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pasta_lm.errors import UsageError
from pasta_lm.language.tags import MAX_UNITS, TOKENS_PER_UNIT


class FinishReason(StrEnum):
    """Why a thread or a response ended."""

    STOP = "stop"  # it ended by itself: end-of-text, ``</async>``, or a ``stop`` string
    LENGTH = "length"  # A limit ended it: the block's, the response's, or the model's last position
    ABORT = "abort"  # given up by the caller, or by a stop string earlier in the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one response. ``None`` means: no bound of its own."""

    max_tokens: int = 2048  # tokens of all threads together, tags included
    max_threads: int | None = None  # decoding in the same step; others are deferred, not dropped
    max_blocks: int = 64  # blocks of the response; beyond it no promise can be sampled
    max_tokens_per_thread: int | None = None  # tokens of a block, its two tags included
    max_topic_tokens: int = 12  # tokens of a topic; after them only closing pieces can be sampled
    max_depth: int = 1  # how deep blocks may nest
    max_position: int | None = None  # the model's last position

    def __post_init__(self) -> None:
        minima = {"max_tokens": 1, "max_threads": 1, "max_topic_tokens": 1}
        minima |= {"max_blocks": 0, "max_depth": 0, "max_tokens_per_thread": 3}
        for name, bound in minima.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise UsageError(f"{name} is {value}, but must be at least {bound}")

    def has_room(self, position: int) -> bool:
        return self.max_position is None or position < self.max_position - 1  # where it must end

    def largest_units(self, promise_end: int) -> int:
        """Return the largest promise (in units) that keeps main below the last position."""
        if self.max_position is None:
            return MAX_UNITS
        return max(0, min(MAX_UNITS, (self.max_position - promise_end - 1) // TOKENS_PER_UNIT))
