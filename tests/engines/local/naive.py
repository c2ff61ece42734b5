"""The oracle of the tests: everything that was fed, recomputed in one masked forward pass.

Slow and obvious. The mask and the positions come from ``interpreter.placement``; positions 'rotate'
are expressed by repeating keys and values once per epoch and masking all but the query's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pasta_lm.engines.local.attention import (
    LayerCall,
    additive,
    attend,
    cutoff_table,
    in_window,
    visible,
)
from pasta_lm.engines.local.runner import Rotation, plain_logits
from pasta_lm.interpreter.placement import Entries
from pasta_lm.interpreter.positions import Epoch

# Legend: N entries (queries and keys alike), E epochs, G key/value heads, D head size.


class NaivePass:
    """All entries of one request in one pass."""

    def __init__(
        self,
        entries: Entries,
        device: torch.device,
        rotations: Mapping[int, Rotation | None] | None = None,
    ) -> None:
        """Prepare mask and positions; several epochs need ``rotations``."""
        self._rotations = rotations
        self.positions_N = _tensor([entry.position for entry in entries.items], device)
        owners_N = _tensor([entry.owner for entry in entries.items], device)
        cutoffs = cutoff_table([entry.row for entry in entries.items], entries.num_owners, device)
        visible_NN = visible(torch.arange(len(entries), device=device), cutoffs, owners_N)
        epochs: dict[int, Epoch] = {entry.epoch.index: entry.epoch for entry in entries.items}
        self._key_positions_EN = [
            _tensor([epoch.moved.get(s, e.position) for s, e in enumerate(entries.items)], device)
            for epoch in epochs.values()
        ]
        indices = {key: index for index, key in enumerate(epochs)}
        epoch_N = _tensor([indices[entry.epoch.index] for entry in entries.items], device)
        self._visible = torch.cat(
            [visible_NN & (epoch_N == index)[:, None] for index in range(len(epochs))], dim=1
        )  # bool [N, E * N]
        self._masks: dict[int | None, Tensor] = {}

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        """Attend over all entries under the mask of this layer's window."""
        keys = torch.cat([self._moved(call, k_GND, p) for p in self._key_positions_EN], dim=1)
        values = v_GND.repeat(1, len(self._key_positions_EN), 1)
        return attend(call, q_HND, keys, values, self._mask(call.window, q_HND.dtype))

    def _moved(self, call: LayerCall, k_GND: Tensor, positions_N: Tensor) -> Tensor:
        offsets_N = positions_N - self.positions_N
        if not offsets_N.any():
            return k_GND
        assert self._rotations is not None, "several epochs need the layers' rotations"
        rotation = self._rotations[call.layer]
        return k_GND if rotation is None else rotation.turn(k_GND, offsets_N)

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        if window not in self._masks:
            visible = self._visible
            if window is not None:
                seen_at = torch.cat(self._key_positions_EN)
                visible = visible & in_window(self.positions_N, seen_at, window)
            self._masks[window] = additive(visible, dtype)
        return self._masks[window]


def _tensor(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def naive_logits(
    model: nn.Module,
    entries: Entries,
    rotations: Mapping[int, Rotation | None] | None = None,
    wanted: Sequence[int] | None = None,
) -> Tensor:
    """Return the logits of entries, all or those in slots ``wanted``, from one masked pass.

    The model's attention must be ``pasta_attention``; positions 'rotate' need its rotations.
    """
    device = next(model.parameters()).device
    naive = NaivePass(entries, device, rotations)
    tokens = _tensor([entry.token for entry in entries.items], device)
    slots = _tensor(list(range(len(entries)) if wanted is None else wanted), device)
    with torch.inference_mode():
        return plain_logits(model, tokens, naive.positions_N, slots, naive).float()
