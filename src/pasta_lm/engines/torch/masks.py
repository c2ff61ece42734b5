"""The visibility table over tensors: which queries of a pass see which entries.

The rule itself is ``interpreter.visibility.Row.sees``; this file only evaluates it for many
queries and entries at once. A test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pasta_lm.interpreter.entries import Entries
from pasta_lm.interpreter.visibility import Row

# Legend: Q queries of a pass, K entries (keys), O owners.


def cutoff_table(rows: Sequence[Row], num_owners: int, device: torch.device) -> Tensor:
    """Return rows of cutoffs as a table.

    Returns:
        int64 [Q, O]: the first slot of each owner that the query may not see.
    """
    table = [[row.cutoff(owner) for owner in range(num_owners)] for row in rows]
    return torch.tensor(table, dtype=torch.int64, device=device)


def visible(query_slots_Q: Tensor, cutoffs_QO: Tensor, owners_K: Tensor) -> Tensor:
    """Evaluate the rule of ``Row.sees`` for every query and every entry.

    Args:
        query_slots_Q: int64 [Q].
        cutoffs_QO: int64 [Q, O], as ``cutoff_table`` gives it.
        owners_K: int64 [K]: the owner of the entry in each slot.

    Returns:
        bool [Q, K].
    """
    slots_K = torch.arange(len(owners_K), device=owners_K.device)
    return (slots_K <= query_slots_Q[:, None]) & (slots_K < cutoffs_QO[:, owners_K])


def in_window(query_positions_Q: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """Tell which keys a sliding window of positions lets a query see.

    Args:
        query_positions_Q: int64 [Q].
        key_positions: int64 [K], or [Q, K] where each query has its own.
        window: A key is seen iff position(q) - position(k) < window, negative differences too.

    Returns:
        bool [Q, K].
    """
    return query_positions_Q[:, None] - key_positions < window


def additive(visible_QK: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores: 0 where visible, a very low finite number elsewhere.

    Returns:
        dtype [Q, K].
    """
    # Finite, because a block of keys that is masked as a whole makes NaN of -inf - (-inf).
    lowest = torch.finfo(dtype).min / 2
    return torch.zeros(visible_QK.shape, dtype=dtype, device=visible_QK.device).masked_fill_(
        ~visible_QK, lowest
    )


def entries_mask(entries: Entries, device: torch.device) -> Tensor:
    """Return who saw whom among all entries of a request.

    Returns:
        bool [K, K], True where the entry of the row saw the entry of the column.
    """
    owners_K = torch.tensor([entry.owner for entry in entries.items], device=device)
    cutoffs = cutoff_table([entry.row for entry in entries.items], entries.num_owners, device)
    return visible(torch.arange(len(entries), device=device), cutoffs, owners_K)
