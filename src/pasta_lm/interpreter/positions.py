"""The positions of tokens, the only definition: a gap for each strategy.

The block of a promise that ends at position p begins at p + 1. Strategies differ in where main
continues after its promise, and in the position of a sync. All positions count from 0, in
tokens. Knows nothing of slots, text or tensors.

Source: PASTA, section 3.3 and its comparison of position strategies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pasta_lm.language.tags import TOKENS_PER_UNIT


class PositionStrategy(StrEnum):
    """How main's positions treat the length of a block that is not there yet."""

    PREDICT = "predict"  # a gap of ten positions a promised unit (the paper's choice)
    CONTINUE = "continue"  # leave no gap; a sync stands behind the largest visible position
    ORACLE = "oracle"  # leave a gap of the true length: replay and training only
    ROTATE = "rotate"  # ``predict``, but a sync moves all visible keys to reading order


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """The time between two syncs of a thread, with the positions that the first one assigned."""

    index: int = 0  # unique within a request
    moved: dict[int, int] = field(default_factory=dict)  # slot -> position, set by the first sync


def key_position(slot: int, fed_position: int, epoch: Epoch) -> int:
    """Return where queries of an epoch see the key of an entry that was fed at a position."""
    return epoch.moved.get(slot, fed_position)


def position_after_promise(
    strategy: PositionStrategy, promise_end: int, units: int, block_length: int | None = None
) -> int:
    """Return the position of the next main token after a promise whose last token is at a position.

    ``units`` is the promised length in tens of tokens, ``block_length`` the true one with both
    tags: only ``oracle`` needs it.

    Raises:
        ValueError: ``oracle`` without a length.
    """
    match strategy:
        case PositionStrategy.PREDICT | PositionStrategy.ROTATE:
            gap = TOKENS_PER_UNIT * units
        case PositionStrategy.CONTINUE:
            gap = 0
        case PositionStrategy.ORACLE:
            if block_length is None:
                raise ValueError(
                    "positions 'oracle' need the block's length: replay and training only"
                )
            gap = block_length
    return promise_end + gap + 1


def position_of_sync(
    strategy: PositionStrategy, running: int, visible_positions: Iterable[int]
) -> int:
    """Return where a ``<sync/>`` stands.

    ``running`` is the position of main's next token without the sync. ``continue`` reads the
    positions of all entries that the sync sees, ``rotate`` their positions in reading order.
    """
    if strategy in (PositionStrategy.CONTINUE, PositionStrategy.ROTATE):
        return max(visible_positions, default=running - 1) + 1
    return running
