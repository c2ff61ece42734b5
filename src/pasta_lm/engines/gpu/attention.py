"""Attention of all rows of a pass over the pages of their requests, with the table of cutoffs.

Two functions with one contract: ``attend_gathered``, plain torch, is slow and obvious;
``attend_split`` launches Triton kernels. Each takes soft caps, windows, sinks and grouped heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from pasta_lm.engines.gpu.batch import (
    OWNER,
    POOL_SLOT,
    POSITION,
    SLOT,
    PagedBatch,
    num_splits,
    power_of_two,
)
from pasta_lm.engines.passes.attention import LayerCall, additive, attend, in_window, visible
from pasta_lm.engines.passes.pool import Pool

_TILE_BYTES = 16_384  # keys that an instance of the kernel holds at a time
_TILE_BYTES_FLOAT32 = 8_192  # more would not fit into the registers
MIN_CAPABILITY = 8, 0  # Triton compiles for older cards without their tensor cores
_MIN_TILE = 16  # the smallest side of a product in Triton

# Legend: N rows, H query heads, G key heads, S slots of the pool, D head size, V value size.


def has_triton() -> bool:
    return find_spec("triton") is not None


def fault_of(device: torch.device) -> str | None:
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        number = ".".join(map(str, capability))
        return f"the GPU has compute capability {number}, and Triton's kernels need 8.0"
    return None if has_triton() else "Triton is not installed"


@cache
def _kernels():  # type: ignore[no-untyped-def]
    from pasta_lm.engines.gpu import kernels

    return kernels


class LayerMemory(NamedTuple):
    """The pool as one layer sees it, and the pass over it."""

    keys_GSD: Tensor
    values_GSV: Tensor
    entries: Tensor  # int32 [2, S]: the owner and the position of the entry in each slot
    batch: PagedBatch


Attend = Callable[[LayerCall, Tensor, Tensor, Tensor, LayerMemory], Tensor]


class PagedPass:
    """One pass, as the attention of the model's layers sees it."""

    def __init__(self, batch: PagedBatch, pool: Pool, entries: Tensor, attend: Attend) -> None:
        self._batch, self._pool, self._entries, self._attend = batch, pool, entries, attend

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        keys, values = self._pool.keys[call.layer], self._pool.values[call.layer]
        memory = LayerMemory(keys, values, self._entries, self._batch)
        return self._attend(call, q_HND, k_GND, v_GND, memory)


def place_entries(batch: PagedBatch, entries: Tensor) -> None:
    pool_slots = batch.rows[POOL_SLOT]
    if entries.is_cuda:
        _kernels().place[(len(pool_slots),)](batch.rows, entries, len(pool_slots), entries.shape[1])
        return
    is_row = pool_slots >= 0
    lines = batch.rows[[OWNER, POSITION]]
    entries[:, pool_slots[is_row]] = lines[:, is_row]


def attend_gathered(
    call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GNV: Tensor, memory: LayerMemory
) -> Tensor:
    """Write the new keys and values, then attend; plain torch; return [H, N, V], padding 0."""
    batch = memory.batch
    pool_slots_N = batch.rows[POOL_SLOT]
    is_row = pool_slots_N >= 0
    memory.keys_GSD[:, pool_slots_N[is_row]] = k_GND[:, is_row]
    memory.values_GSV[:, pool_slots_N[is_row]] = v_GNV[:, is_row]
    out = q_HND.new_zeros(*q_HND.shape[:2], v_GNV.shape[-1])
    in_page = torch.arange(batch.page_size, device=q_HND.device)
    for start, num_rows, request, num_keys in batch.blocks.t().tolist():
        if num_rows == 0:
            continue
        span = slice(start, start + num_rows)
        slots_K = (batch.table[request, :, None] * batch.page_size + in_page).flatten()[:num_keys]
        owners_K, positions_K = memory.entries[:, slots_K]
        seen = visible(batch.rows[SLOT, span], batch.cutoffs[span], owners_K)
        if call.window is not None:
            seen &= in_window(batch.rows[POSITION, span], positions_K, call.window)
        mask = additive(seen, q_HND.dtype)
        keys, values = memory.keys_GSD[:, slots_K], memory.values_GSV[:, slots_K]
        out[:, span] = attend(call, q_HND[:, span], keys, values, mask)
    return out


def attend_split(
    call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GNV: Tensor, memory: LayerMemory, *,
    splits: int | None = None,
) -> Tensor:  # fmt: skip
    """Write the new keys and values, then attend; Triton kernels; return [H, N, V], padding 0."""
    kernels, (keys, values, entries, batch) = _kernels(), memory
    bucket = batch.bucket
    (num_heads, num_rows, key_size), (num_key_heads, _, value_size) = q_HND.shape, v_GNV.shape
    q_HND, k_GND, v_GNV = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (q_HND, k_GND, v_GNV)
    )
    sizes = {
        "KEY_SIZE": key_size, "VALUE_SIZE": value_size, "BLOCK_D": _tile(key_size),
        "BLOCK_V": _tile(value_size),
    }  # fmt: skip
    kernels.write[(num_rows, num_key_heads)](
        k_GND, v_GNV, keys, values, batch.rows, num_rows, *k_GND.stride()[:2],
        *v_GNV.stride()[:2], keys.stride(0), values.stride(0), **sizes,
    )  # fmt: skip
    splits = splits or num_splits(bucket, num_key_heads, batch.page_size)
    parts = q_HND.new_empty(splits, num_rows, num_heads, value_size, dtype=torch.float32)
    maxima, sums = parts.new_empty(2, splits, num_rows, num_heads)
    group = num_heads // num_key_heads
    kernels.attend[(bucket.num_blocks, num_key_heads, splits)](
        q_HND, keys, values, batch.rows, batch.blocks, batch.table, batch.cutoffs, entries,
        parts, maxima, sums, num_rows, bucket.num_blocks, splits, entries.shape[1],
        batch.table.stride(0), batch.cutoffs.stride(0), *q_HND.stride()[:2],
        keys.stride(0), values.stride(0), key_size**-0.5 if call.scaling is None else call.scaling,
        call.softcap or 0.0, call.window or 0,
        NUM_HEADS=num_heads, GROUP=group, PAGE=batch.page_size, HAS_CAP=call.softcap is not None,
        HAS_WINDOW=call.window is not None, **sizes, **_tiles(keys, bucket.block_rows * group),
    )  # fmt: skip
    out = q_HND.new_empty(num_rows, num_heads, value_size)
    has_sinks = call.sinks_H is not None
    kernels.combine[(num_rows, num_heads)](
        parts, maxima, sums, batch.rows, call.sinks_H if has_sinks else parts, out, num_rows,
        NUM_HEADS=num_heads, VALUE_SIZE=value_size, NUM_SPLITS=splits, HAS_SINKS=has_sinks,
        BLOCK_V=sizes["BLOCK_V"],
    )  # fmt: skip
    return out.transpose(0, 1)


def _tiles(keys_GSD: Tensor, num_queries: int) -> dict[str, int]:
    """Return the sizes of a launch: as large as fits cards of 99 KiB of shared memory."""
    tile, kind = _tile(keys_GSD.shape[-1]), keys_GSD.dtype
    tile_bytes = _TILE_BYTES_FLOAT32 if kind == torch.float32 else _TILE_BYTES
    block_keys = max(_MIN_TILE, min(128, tile_bytes // (tile * kind.itemsize)))
    queries = max(_MIN_TILE, power_of_two(num_queries))
    return {
        "BLOCK_M": queries, "BLOCK_K": block_keys, "num_warps": 8 if queries * tile >= 8192 else 4,
        "num_stages": 2 if block_keys * tile * kind.itemsize <= tile_bytes else 1,
    }  # fmt: skip


def _tile(size: int) -> int:
    return max(_MIN_TILE, power_of_two(size))
