"""The positions of tokens and the join of blocks at a sync, the only definitions.

The block of a promise that ends at position p begins at p + 1. Strategies differ in where main
continues after its promise, and in the position of a sync. All positions count from 0, in
tokens. Source: PASTA, section 3.3 and its comparison of position strategies.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pasta_lm.errors import UsageError
from pasta_lm.language.tags import TOKENS_PER_UNIT


class PositionStrategy(StrEnum):
    """How main's positions treat the length of a block that is not there yet."""

    PREDICT = "predict"  # a gap of ten positions a promised unit (the paper's choice)
    CONTINUE = "continue"  # leave no gap; a sync stands behind the largest visible position
    ORACLE = "oracle"  # leave a gap of the true length: replay and training only


class Join(StrEnum):
    """How a sync makes the blocks visible to main."""

    SHARED = "shared"  # their entries as they are (the paper's choice)
    RECOMPUTE = "recompute"
    """The written form so far is fed again, as one plain causal text with consecutive positions.

    With positions ``continue`` every thread then is at every moment a plain causal text, which any
    server of completions can compute. Ours; ThreadWeaver re-reads its threads in this way.
    """


def check_join(join: Join, strategy: PositionStrategy) -> None:
    if join is Join.RECOMPUTE and strategy is not PositionStrategy.CONTINUE:
        reason = f"join {join.value!r} leaves no gaps between positions, {strategy.value!r} does"
        raise UsageError(reason, hint=f"use positions {PositionStrategy.CONTINUE.value!r} with it")


def position_after_promise(
    strategy: PositionStrategy, promise_end: int, units: int, block_length: int | None = None
) -> int:
    """Return the position of main behind a promise; ``oracle`` needs the length with both tags."""
    match strategy:
        case PositionStrategy.PREDICT:
            gap = TOKENS_PER_UNIT * units
        case PositionStrategy.CONTINUE:
            gap = 0
        case PositionStrategy.ORACLE:
            if block_length is None:
                raise ValueError("positions 'oracle' need block lengths: replay and training only")
            gap = block_length
    return promise_end + gap + 1


def position_of_sync(
    strategy: PositionStrategy, running: int, visible_positions: Iterable[int]
) -> int:
    """Return the position of a ``<sync/>``; ``running`` is that of main's next token without it."""
    if strategy is PositionStrategy.CONTINUE:
        return max(visible_positions, default=running - 1) + 1
    return running
