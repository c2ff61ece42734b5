"""The model: a batch in, logits out.

Linear layers run once over the whole flattened list of tokens; attention runs per request over its
own run of the pool, so a prefix is read once however many threads share it. Knows nothing of
threads, text or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pasta_lm.engines.cpu import attention as compiled
from pasta_lm.engines.cpu.attention import CompiledAttention, Heads, Queries
from pasta_lm.engines.local.attention import (
    MAX_GROUPED_ROWS,
    LayerCall,
    Pass,
    additive,
    attend,
    attend_grouped,
    in_window,
    is_plain,
    row_mask,
)
from pasta_lm.engines.local.batch import Batch, RequestSlice
from pasta_lm.engines.local.pool import LayerViews, Pool
from pasta_lm.engines.local.rotation import Rotation

# Legend: N tokens of the pass, Q tokens of one request in it, K entries of that request,
# G key/value heads, H query heads, D head size, W rows whose logits are wanted, V vocabulary,
# C columns of queries, keys and values side by side.


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
        self._sizes = [part.stop - part.start for part in batch.slices]
        self._masks: dict[tuple[int, int | None, int], Tensor | None] = {}
        self._compiled: dict[int | None, CompiledAttention] = {}
        self._has_few = all(
            part.rotation is None and compiled.are_few(size, part.visible_QK)
            for part, size in zip(batch.slices, self._sizes, strict=True)
        )

    @cached_property
    def _views(self) -> list[LayerViews]:
        # All layers at once: a view for each layer and request would cost more than attending
        # does where answers are short.
        pool, parts = self._pool, self._batch.slices
        return [pool.layer_views(part.run, 0, part.num_entries) for part in parts]

    @cached_property
    def _new(self) -> LayerViews:
        """The new slots of the only request."""
        (part,) = self._batch.slices
        return self._pool.layer_views(part.run, part.first_slot, part.num_entries)

    @cached_property
    def _slots_N(self) -> Tensor:
        parts = self._batch.slices
        return self._pool.slots([(part.run, part.first_slot, part.num_entries) for part in parts])

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        """Write keys and values of all new tokens, then let each request attend over its own."""
        if self.takes_few(call) and compiled.fits(q_HND, v_GND):
            out = self.attend_few(call, Heads.of(q_HND, k_GND, v_GND), None)
            return out.view(len(out), len(q_HND), -1).transpose(0, 1)
        self._write(call.layer, k_GND, v_GND)
        num_heads, num_tokens, size = q_HND.shape
        q_NGHD = q_HND.transpose(0, 1).reshape(num_tokens, len(k_GND), -1, size)
        if len(self._sizes) == 1:
            out = self._attend_one(call, 0, q_NGHD)
        else:
            parts = enumerate(q_NGHD.split(self._sizes))
            out = torch.cat([self._attend_one(call, index, q_QGHD) for index, q_QGHD in parts])
        return out.reshape(num_tokens, num_heads, -1).transpose(0, 1)

    def takes_few(self, call: LayerCall) -> bool:
        """Return whether ``attend_few`` takes the tokens of this pass."""
        return self._has_few and is_plain(call)

    def attend_few(
        self, call: LayerCall, heads: Heads, turned_by: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Do as ``attend`` with compiled attention, which rotates if cos and sin are given.

        Returns:
            [N, H * D]
        """
        out = torch.empty(
            (len(self._batch.tokens), heads.num_heads * heads.size), dtype=heads.dtype
        )
        if turned_by is not None:
            turned_by = turned_by[0].contiguous(), turned_by[1].contiguous()
        if call.window not in self._compiled:
            self._compiled[call.window] = self._compile(call.window)
        keys, values = self._pool.keys[call.layer], self._pool.values[call.layer]
        self._compiled[call.window](heads, turned_by, keys, values, call.scaling, out)
        return out

    def _compile(self, window: int | None) -> CompiledAttention:
        return CompiledAttention(
            [
                Queries(
                    size, part.first_slot, self._pool.start(part.run), self._visible(part, window)
                )
                for part, size in zip(self._batch.slices, self._sizes, strict=True)
            ]
        )

    def _write(self, layer: int, k_GND: Tensor, v_GND: Tensor) -> None:
        if len(self._sizes) > 1:
            self._pool.write(layer, self._slots_N, k_GND, v_GND)
        else:  # a request's new slots are consecutive: copying costs less than indexing
            self._new.keys[layer][0].copy_(k_GND)
            self._new.values[layer][0].copy_(v_GND)

    def _attend_one(self, call: LayerCall, index: int, q_QGHD: Tensor) -> Tensor:
        num_queries, num_groups, num_heads, size = q_QGHD.shape
        views = self._views[index]
        keys, values = views.keys[call.layer], views.values[call.layer]
        is_rotating = self._batch.slices[index].rotation is not None
        if is_plain(call) and num_queries * num_heads <= MAX_GROUPED_ROWS and not is_rotating:
            mask = self._mask(index, call.window, q_QGHD.dtype, num_heads)
            return attend_grouped(call, q_QGHD, keys, values, mask)
        q_HQD = q_QGHD.view(num_queries, num_groups * num_heads, size).transpose(0, 1)
        if is_rotating:
            out_HQD = self._attend_rotating(call, index, q_HQD, keys[0], values[0])
        else:
            mask = self._mask(index, call.window, q_HQD.dtype)
            out_HQD = attend(call, q_HQD, keys[0], values[0], mask)
        return out_HQD.transpose(0, 1).reshape(num_queries, num_groups, num_heads, -1)

    def _attend_rotating(
        self, call: LayerCall, index: int, q_HQD: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Attend in a pass that feeds a sync under 'rotate'.

        The queries before the sync see keys where they stood; then the keys move, once; then the
        sync sees them where they stand from now on.
        """
        part = self._batch.slices[index]
        assert part.rotation is not None
        assert self._rotations is not None
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

    def _mask(
        self, index: int, window: int | None, dtype: torch.dtype, num_grouped: int = 0
    ) -> Tensor | None:
        """Return a request's mask, or None; for ``attend_grouped`` if heads are grouped."""
        key = (index, window, num_grouped)
        if key not in self._masks:
            visible = self._visible(self._batch.slices[index], window)
            mask = None if visible is None else additive(visible, dtype)
            if mask is not None and num_grouped:
                mask = row_mask(mask, num_grouped)
            self._masks[key] = mask
        return self._masks[key]

    def _visible(self, part: RequestSlice, window: int | None) -> Tensor | None:
        """Return which entries the tokens of a request see in a layer, bool [Q, K]; None: all."""
        visible = part.visible_QK
        # Most passes reach less far back than the window, and need no mask for it.
        if window is not None and part.largest_distance >= window:
            positions_Q = self._batch.positions[part.start : part.stop]
            near = in_window(positions_Q, part.key_positions, window)
            visible = near if visible is None else visible & near
        return visible


class Runner:
    """Run batches through a model against a pool."""

    def __init__(
        self, model: PreTrainedModel, pool: Pool, fast_logits: LogitsFunction | None = None
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
