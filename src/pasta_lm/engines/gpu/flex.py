"""Paged attention by torch's FlexAttention: no key is copied, one block mask serves all layers.

The keys are those of the whole pool, each block of rows is one element of the batch, and the pages
of its request are the blocks of its mask. Uncompiled on a CPU, where every row computes a score for
each slot of the pool; compiled on a GPU, where it has not run yet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pasta_lm.engines.gpu.attention import LayerMemory, place_keys
from pasta_lm.engines.gpu.batch import LATEST, NO_SLOT, PagedBatch, RowIndex
from pasta_lm.engines.local.attention import LayerCall
from pasta_lm.errors import UsageError

MAX_COMPILED = 256  # shapes of a pass times kinds of layer; torch stops at 8 by default

# Legend: N rows, B blocks of rows, M rows of a block, P pages of a request, F pages of the pool,
# O owners, S slots of the pool, H query heads, G key heads, D head size, V value size.


@cache
def flex() -> Any:
    """Return torch's module.

    Raises:
        UsageError: torch is too old: block masks without the transposed ones, and the sums of the
            softmax beside the output, came with 2.9.
    """
    from torch.nn.attention import flex_attention

    if not hasattr(flex_attention, "AuxRequest"):
        raise UsageError(f"FlexAttention over pages needs torch 2.9, this is {torch.__version__}")
    return flex_attention


@cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex().flex_attention, dynamic=False, fullgraph=True)


class PassMask(NamedTuple):
    """What the rows of a pass may see, the same for all layers but for their windows."""

    rows_BM: Tensor
    """The row of each query; any row for a query that is padding."""
    slots_BM: Tensor
    """Its slot in its request; -1 for padding, which sees nothing."""
    positions_BM: Tensor
    cutoffs_BMO: Tensor
    num_pages_B: Tensor
    pages_BP: Tensor
    order_BF: Tensor
    """For each page of the pool its index in the block's request; another request's: LATEST."""
    owners_S: Tensor
    key_positions_S: Tensor
    page_size: int

    @classmethod
    def of(cls, batch: PagedBatch, entries: Tensor) -> PassMask:
        """Return the mask of a pass whose entries are in place; nothing waits for the device."""
        start_B, count_B, request_B, num_keys_B = batch.blocks.long()
        row_M = torch.arange(batch.bucket.block_rows, device=entries.device)
        # Shapes are those of the blocks, so that long prompts of any length share compiled code.
        rows_BM = (start_B[:, None] + row_M).clamp(max=batch.rows.shape[1] - 1)
        slots_BM = batch.rows[RowIndex.SLOT, rows_BM].where(row_M < count_B[:, None], NO_SLOT)
        pages_BP, owners_S = batch.table[request_B], entries[0]
        order_BP = torch.arange(pages_BP.shape[1], device=entries.device).expand_as(pages_BP)
        order_BF = order_BP.new_full((len(start_B), len(owners_S) // batch.page_size), LATEST)
        # The least, because padding of the table is page 0, at an index beyond any query's slot.
        order_BF.scatter_reduce_(1, pages_BP.long(), order_BP, "amin")
        return cls(
            rows_BM, slots_BM, batch.rows[RowIndex.POSITION, rows_BM], batch.cutoffs[rows_BM],
            (-(-num_keys_B // batch.page_size)).int(), pages_BP, order_BF,
            # Other requests may have more owners than the table has columns.
            owners_S.clamp(max=batch.cutoffs.shape[1] - 1), entries[1], batch.page_size,
        )  # fmt: skip

    def blocks(self, window: int | None) -> Any:
        """Return the block mask of a layer."""
        size = self.page_size

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            slot = self.order_BF[b, k // size] * size + k % size
            seen = (slot <= self.slots_BM[b, q]) & (slot < self.cutoffs_BMO[b, q, self.owners_S[k]])
            if window is None:
                return seen
            return seen & (self.positions_BM[b, q] - self.key_positions_S[k] < window)

        return flex().BlockMask.from_kv_blocks(
            self.num_pages_B[:, None, None], self.pages_BP[:, None, None],
            BLOCK_SIZE=(128, size), mask_mod=sees, compute_q_blocks=False,
            seq_lengths=(self.rows_BM.shape[1], len(self.owners_S)),
        )  # fmt: skip


def attend_flex(
    call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GNV: Tensor, memory: LayerMemory,
    batch: PagedBatch, mask: PassMask | None = None,
) -> Tensor:  # fmt: skip
    """Write the new keys and values, then attend; FlexAttention with the mask of the pass.

    Returns:
        [H, N, V]: 0 for padding.
    """
    place_keys(k_GND, v_GNV, memory, batch)
    mask = PassMask.of(batch, memory.entries) if mask is None else mask
    run = _compiled() if q_HND.is_cuda else flex().flex_attention
    with torch._dynamo.config.patch(recompile_limit=MAX_COMPILED):
        found_BHMV, sums = run(
            q_HND[:, mask.rows_BM].transpose(0, 1), memory.keys_GSD[None], memory.values_GSV[None],
            score_mod=None if call.softcap is None else _capped(call.softcap),
            block_mask=mask.blocks(call.window), scale=call.scaling,
            enable_gqa=len(q_HND) != len(k_GND),
            return_aux=flex().AuxRequest(lse=call.sinks_H is not None),
            kernel_options={"BLOCK_N": batch.page_size},  # a block of the mask is a page
        )  # fmt: skip
    if call.sinks_H is not None:  # a share of each softmax goes to the sink
        share_BHM = torch.sigmoid(sums.lse - call.sinks_H[:, None])
        found_BHMV = found_BHMV * share_BHM[..., None].to(found_BHMV.dtype)
    out = q_HND.new_zeros(*q_HND.shape[:2], v_GNV.shape[-1])
    # A sum, because padding adds its 0 to some row.
    return out.index_add_(1, mask.rows_BM.flatten(), found_BHMV.transpose(0, 1).flatten(1, 2))


def _capped(softcap: float) -> Callable[..., Tensor]:
    return lambda score, b, h, q, k: softcap * torch.tanh(score / softcap)
