"""The model: a batch in, logits out.

Linear layers run once over the whole flattened list of tokens; attention runs per request over its
own run of the pool, so a prefix is read once however many threads share it. Knows nothing of
threads, text or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pasta_lm.engines.torch.attention import LayerCall, Pass, additive, attend, in_window
from pasta_lm.engines.torch.batch import Batch, RequestSlice
from pasta_lm.engines.torch.pool import Pool
from pasta_lm.engines.torch.rotation import Rotation

# Legend: N tokens of the pass, Q tokens of one request in it, K entries of that request,
# G key/value heads, H query heads, D head size, W rows whose logits are wanted, V vocabulary.


LogitsFunction = Callable[[Tensor, Tensor, Tensor, Pass], Tensor]
"""From tokens [N], positions [N], wanted rows [W] and a pass to logits [W, V]."""


class CachedPass:
    """One pass against the pool: write the new keys and values, then attend per request."""

    def __init__(
        self, batch: Batch, pool: Pool, rotations: Mapping[int, Rotation | None] | None
    ) -> None:
        self._batch = batch
        self._pool = pool
        self._rotations = rotations
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        """Write keys and values of all new tokens, then let each request attend over its own."""
        slices = self._batch.slices
        # Decoding a single request, the common case, needs no slices and no copy.
        if len(slices) == 1 and slices[0].rotation is None:
            return self._attend_one(call, 0, q_HND, k_GND, v_GND)
        outs = []
        for index, part in enumerate(slices):
            span = slice(part.start, part.stop)
            q, k, v = q_HND[:, span], k_GND[:, span], v_GND[:, span]
            if part.rotation is None:
                outs.append(self._attend_one(call, index, q, k, v))
            else:
                outs.append(self._attend_rotating(call, index, q, k, v))
        return torch.cat(outs, dim=1)

    def _attend_one(
        self, call: LayerCall, index: int, q_HQD: Tensor, k_GQD: Tensor, v_GQD: Tensor
    ) -> Tensor:
        keys, values = self._write(call, self._batch.slices[index], k_GQD, v_GQD)
        mask = self._mask(index, call.window, q_HQD.dtype)
        return attend(call, q_HQD, keys, values, mask)

    def _write(
        self, call: LayerCall, part: RequestSlice, k_GQD: Tensor, v_GQD: Tensor
    ) -> tuple[Tensor, Tensor]:
        keys, values = self._pool.view(call.layer, part.run, part.num_entries)
        num_new = part.stop - part.start
        keys.narrow(1, part.first_slot, num_new).copy_(k_GQD)
        values.narrow(1, part.first_slot, num_new).copy_(v_GQD)
        return keys, values

    def _attend_rotating(
        self, call: LayerCall, index: int, q_HQD: Tensor, k_GQD: Tensor, v_GQD: Tensor
    ) -> Tensor:
        """Attend in a pass that feeds a sync under 'rotate'.

        The queries before the sync see keys where they stood; then the keys move, once; then the
        sync sees them where they stand from now on.
        """
        part = self._batch.slices[index]
        assert part.rotation is not None
        assert self._rotations is not None
        keys, values = self._write(call, part, k_GQD, v_GQD)
        mask = self._mask(index, call.window, q_HQD.dtype)
        if mask is None:
            mask = q_HQD.new_zeros(q_HQD.shape[1], part.num_entries)
        num_before = part.rotation.num_queries_before
        outs = []
        if num_before:
            outs.append(attend(call, q_HQD[:, :num_before], keys, values, mask[:num_before]))
        rotation = self._rotations[call.layer]
        if rotation is not None:
            keys[:] = rotation.turn(keys, part.rotation.offsets_K)
        outs.append(attend(call, q_HQD[:, num_before:], keys, values, mask[num_before:]))
        return torch.cat(outs, dim=1)

    def _mask(self, index: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
        key = (index, window)
        if key not in self._masks:
            self._masks[key] = self._make_mask(self._batch.slices[index], window, dtype)
        return self._masks[key]

    def _make_mask(
        self, part: RequestSlice, window: int | None, dtype: torch.dtype
    ) -> Tensor | None:
        visible = part.visible_QK
        # Most passes reach less far back than the window, and need no mask for it.
        if window is not None and part.largest_distance >= window:
            positions_Q = self._batch.positions[part.start : part.stop]
            near = in_window(positions_Q, part.key_positions, window)
            visible = near if visible is None else visible & near
        return None if visible is None else additive(visible, dtype)


class Runner:
    """Run batches through a model against a pool."""

    def __init__(
        self,
        model: PreTrainedModel,
        pool: Pool,
        fast_logits: LogitsFunction | None = None,
    ) -> None:
        """Keep the model, whose attention is ``pasta_attention``, and its memory.

        ``fast_logits`` is used instead of the model.
        """
        self.model = model
        self.pool = pool
        self.rotations: Mapping[int, Rotation | None] | None = None  # positions 'rotate' need them
        self._fast_logits = fast_logits

    def run(self, batch: Batch) -> Tensor:
        """Run one forward pass.

        Returns:
            float32 [W, V]: logits of the wanted rows.
        """
        run = CachedPass(batch, self.pool, self.rotations)
        inputs = (batch.tokens, batch.positions, batch.wanted)
        with torch.inference_mode():
            if self._fast_logits is not None:
                logits = self._fast_logits(*inputs, run)
            else:
                logits = plain_logits(self.model, *inputs, run)
        return logits.float()


def plain_logits(
    model: PreTrainedModel, tokens_N: Tensor, positions_N: Tensor, wanted_W: Tensor, run: Pass
) -> Tensor:
    """Return the logits of the wanted rows from the model's own modules, [W, V]."""
    out = model(
        input_ids=tokens_N[None],
        position_ids=positions_N[None],
        use_cache=False,
        logits_to_keep=wanted_W,
        pasta_pass=run,
    )
    logits: Tensor = out.logits[0]
    return logits
