"""The oracle of the tests: everything that was fed, recomputed in one masked forward pass.

Slow and obvious. The mask and the positions come from ``interpreter.placement``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pasta_lm.engines.passes.attention import (
    LayerCall,
    additive,
    attend,
    cutoff_table,
    in_window,
    visible,
)
from pasta_lm.engines.passes.runner import plain_logits
from pasta_lm.interpreter.placement import Entries

# Legend: N entries (queries and keys alike), G key/value heads, D head size.


class NaivePass:
    """All entries of one request in one pass."""

    def __init__(self, entries: Entries, device: torch.device) -> None:
        self.positions_N = _tensor([entry.position for entry in entries.items], device)
        owners_N = _tensor([entry.owner for entry in entries.items], device)
        cutoffs = cutoff_table([entry.row for entry in entries.items], entries.num_owners, device)
        self._visible_NN = visible(torch.arange(len(entries), device=device), cutoffs, owners_N)
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        """Attend over all entries under the mask of this layer's window."""
        return attend(call, q_HND, k_GND, v_GND, self._mask(call.window, q_HND.dtype))

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        if window not in self._masks:
            visible_NN = self._visible_NN
            if window is not None:
                visible_NN = visible_NN & in_window(self.positions_N, self.positions_N, window)
            self._masks[window] = additive(visible_NN, dtype)
        return self._masks[window]


def _tensor(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def naive_logits(model: nn.Module, entries: Entries, wanted: Sequence[int] | None = None) -> Tensor:
    """Return the logits of entries, all or those in slots ``wanted``, from one masked pass.

    The model's attention must be ``pasta_attention``.
    """
    device = next(model.parameters()).device
    naive = NaivePass(entries, device)
    tokens = _tensor([entry.token for entry in entries.items], device)
    slots = _tensor(list(range(len(entries)) if wanted is None else wanted), device)
    with torch.inference_mode():
        return plain_logits(model, tokens, naive.positions_N, slots, naive).float()
