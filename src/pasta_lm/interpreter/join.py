"""The join of blocks at a sync, the only definition: the entries that main sees from there on.

``shared``, the paper's, computes nothing: main sees the entries of the blocks as they are.
``recompute`` feeds the written form so far again, as one plain causal text with consecutive
positions. With positions ``continue`` every thread then is at every moment a plain causal text,
which any server of completions can compute. Knows nothing of text or tensors.

Source of ``recompute``: ours; ThreadWeaver re-reads its threads between two phases in this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pasta_lm.errors import UsageError
from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.positions import PositionStrategy


class Join(StrEnum):
    """How a sync makes the blocks visible to main."""

    SHARED = "shared"  # their entries as they are (the paper's choice)
    RECOMPUTE = "recompute"  # the written form is fed again; only with positions ``continue``


def check_join(join: Join, strategy: PositionStrategy) -> None:
    """Raise a ``UsageError`` unless a join goes with a position strategy."""
    if join is Join.RECOMPUTE and strategy is not PositionStrategy.CONTINUE:
        raise UsageError(
            f"join {join.value!r} leaves no gaps between positions, {strategy.value!r} does",
            hint=f"use positions {PositionStrategy.CONTINUE.value!r} with it",
        )


def num_kept(entries: Entries, written: Sequence[int]) -> int:
    """Return how many entries at the head of a written form need not be fed again.

    ``written`` are slots in reading order. With positions ``continue`` an entry stands at the
    position that is its place in the written form exactly if it saw everything before it: it is
    what a plain causal pass would compute. This holds up to the end of the first block, and for
    all that an earlier sync fed again, so that no token is fed more than twice.
    """
    places = enumerate(written)
    return next((i for i, slot in places if entries[slot].position != i), len(written))
