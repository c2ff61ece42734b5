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

from pasta_lm.engines.gpu.batch import PagedBatch, RowIndex, num_splits, power_of_two
from pasta_lm.engines.local.attention import LayerCall, additive, attend, in_window, visible

_TILE_BYTES = 16_384  # of the keys that an instance of the kernel holds at a time
_SMALL_TILE_BYTES = 8_192  # where registers are short (float32), or shared memory
_SMALL_SHARED_BYTES = 99 << 10  # an instance's shared memory on an RTX 3090, 4090 or 5090
_MIN_TILE = 16  # the smallest side of a product in Triton

# Legend: N rows, H query heads, G key heads, S slots of the pool, D head size, V value size.


class Tuning(NamedTuple):
    """How the kernel is launched; 0: chosen by the sizes."""

    block_keys: int = 0
    num_warps: int = 0
    num_stages: int = 2
    num_splits: int = 0


BY_SIZE = Tuning()


def has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def _kernels():  # type: ignore[no-untyped-def]
    from pasta_lm.engines.gpu import kernels

    return kernels


def launches(device: torch.device, dtype: torch.dtype, queries: int, size: int) -> list[Tuning]:
    """Return how to launch a kernel for queries of a head size: the fastest first.

    If the device lacks the shared memory for one, the next needs less.
    """
    is_small = dtype == torch.float32 or shared_bytes(device) < _SMALL_SHARED_BYTES
    tile_bytes = _SMALL_TILE_BYTES if is_small else _TILE_BYTES
    keys = max(_MIN_TILE, min(128, tile_bytes // (_tile(size) * dtype.itemsize)))
    warps = 8 if queries >= 64 or queries * _tile(size) >= 8192 else 4
    sizes = [keys >> shift for shift in range(4) if keys >> shift >= _MIN_TILE]
    return [Tuning(keys, warps), *(Tuning(fewer, warps, 1) for fewer in sizes)]


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory that an instance of a kernel may take; on a CPU a small card's."""
    if device.type != "cuda":
        return _SMALL_SHARED_BYTES
    return int(_kernels().driver.active.utils.get_device_properties(device.index)["max_shared_mem"])


_too_large: set[tuple[object, ...]] = set()  # launches that a device has refused


class LayerMemory(NamedTuple):
    """The pool as one layer sees it."""

    keys_GSD: Tensor
    values_GSV: Tensor
    entries: Tensor  # int32 [2, S]: the owner and the position of the entry in each slot


Attend = Callable[[LayerCall, Tensor, Tensor, Tensor, LayerMemory, PagedBatch], Tensor]


def place_entries(batch: PagedBatch, entries: Tensor) -> None:
    """Write owners and positions of the pass into their slots of the pool."""
    places = batch.rows[RowIndex.PLACE]
    if entries.is_cuda:
        _kernels().place[(len(places),)](batch.rows, entries, len(places), entries.shape[1])
        return
    is_row = places >= 0
    lines = batch.rows[[RowIndex.OWNER, RowIndex.POSITION]]
    entries[:, places[is_row]] = lines[:, is_row]


def place_keys(k_GND: Tensor, v_GNV: Tensor, memory: LayerMemory, batch: PagedBatch) -> None:
    """Write the new keys and values of a layer into their slots of the pool."""
    if k_GND.is_cuda:
        _launch_write(k_GND, v_GNV, memory, batch)
        return
    places_N = batch.rows[RowIndex.PLACE]
    is_row = places_N >= 0
    memory.keys_GSD[:, places_N[is_row]] = k_GND[:, is_row]
    memory.values_GSV[:, places_N[is_row]] = v_GNV[:, is_row]


def _launch_write(k_GND: Tensor, v_GNV: Tensor, memory: LayerMemory, batch: PagedBatch) -> None:
    k_GND, v_GNV = (x if x.stride(-1) == 1 else x.contiguous() for x in (k_GND, v_GNV))
    (num_key_heads, num_rows, key_size), keys, values = k_GND.shape, *memory[:2]
    _kernels().write[(num_rows, num_key_heads)](
        k_GND, v_GNV, keys, values, batch.rows, num_rows, *k_GND.stride()[:2], *v_GNV.stride()[:2],
        keys.stride(0), values.stride(0), **_sizes(key_size, v_GNV.shape[-1]),
    )  # fmt: skip


def attend_gathered(
    call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GNV: Tensor, memory: LayerMemory,
    batch: PagedBatch,
) -> Tensor:  # fmt: skip
    """Write the new keys and values, then attend; plain torch; return [H, N, V], padding 0."""
    place_keys(k_GND, v_GNV, memory, batch)
    out = q_HND.new_zeros(*q_HND.shape[:2], v_GNV.shape[-1])
    in_page = torch.arange(batch.page_size, device=q_HND.device)
    for start, num_rows, request, num_keys in batch.blocks.t().tolist():
        if num_rows == 0:
            continue
        span = slice(start, start + num_rows)
        places_K = (batch.table[request, :, None] * batch.page_size + in_page).flatten()[:num_keys]
        owners_K, positions_K = memory.entries[:, places_K]
        seen = visible(batch.rows[RowIndex.SLOT, span], batch.cutoffs[span], owners_K)
        if call.window is not None:
            seen &= in_window(batch.rows[RowIndex.POSITION, span], positions_K, call.window)
        mask = additive(seen, q_HND.dtype)
        keys, values = memory.keys_GSD[:, places_K], memory.values_GSV[:, places_K]
        out[:, span] = attend(call, q_HND[:, span], keys, values, mask)
    return out


def attend_split(
    call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GNV: Tensor, memory: LayerMemory,
    batch: PagedBatch, tuning: Tuning = BY_SIZE,
) -> Tensor:  # fmt: skip
    """Write the new keys and values, then attend; Triton kernels; return [H, N, V], padding 0."""
    kernels, bucket = _kernels(), batch.bucket
    (num_heads, num_rows, key_size), (num_key_heads, _, value_size) = q_HND.shape, v_GNV.shape
    _launch_write(k_GND, v_GNV, memory, batch)
    q_HND = q_HND if q_HND.stride(-1) == 1 else q_HND.contiguous()
    keys, values, entries = memory
    sizes = _sizes(key_size, value_size)
    splits = tuning.num_splits or num_splits(bucket, num_key_heads, batch.page_size)
    parts = q_HND.new_empty(splits, num_rows, num_heads, value_size, dtype=torch.float32)
    maxima, sums = parts.new_empty(2, splits, num_rows, num_heads)
    group = num_heads // num_key_heads
    block_m = max(_MIN_TILE, power_of_two(bucket.block_rows * group))
    arguments = (
        q_HND, keys, values, batch.rows, batch.blocks, batch.table, batch.cutoffs, entries,
        parts, maxima, sums, num_rows, bucket.num_blocks, splits, entries.shape[1],
        batch.table.stride(0), batch.cutoffs.stride(0), *q_HND.stride()[:2],
        keys.stride(0), values.stride(0), key_size**-0.5 if call.scaling is None else call.scaling,
        call.softcap or 0.0, call.window or 0,
    )  # fmt: skip
    constants = {
        "NUM_HEADS": num_heads, "GROUP": group, "PAGE": batch.page_size, "BLOCK_M": block_m,
        "HAS_CAP": call.softcap is not None, "HAS_WINDOW": call.window is not None, **sizes,
    }  # fmt: skip
    kernel = kernels.attend[(bucket.num_blocks, num_key_heads, splits)]
    launch_fitting(kernel, arguments, constants, tuning, keys)
    out = q_HND.new_empty(num_rows, num_heads, value_size)
    has_sinks = call.sinks_H is not None
    kernels.combine[(num_rows, num_heads)](
        parts, maxima, sums, batch.rows, call.sinks_H if has_sinks else parts, out, num_rows,
        NUM_HEADS=num_heads, VALUE_SIZE=value_size, NUM_SPLITS=splits, HAS_SINKS=has_sinks,
        BLOCK_V=sizes["BLOCK_V"],
    )  # fmt: skip
    return out.transpose(0, 1)


def launch_fitting(
    kernel: Callable[..., object], arguments: tuple[object, ...], constants: dict[str, int],
    tuning: Tuning, keys_GSD: Tensor,
) -> None:  # fmt: skip
    """Launch a kernel with the fastest settings for which the device has the memory."""
    device, dtype, queries = keys_GSD.device, keys_GSD.dtype, constants["BLOCK_M"]
    known = device, dtype, *constants.values()
    options = launches(device, dtype, queries, keys_GSD.shape[-1])
    if tuning.block_keys:
        options = [tuning._replace(num_warps=tuning.num_warps or options[0].num_warps)]
    options = [option for option in options if (option, *known) not in _too_large]
    for option in options:
        try:
            kernel(
                *arguments, **constants, BLOCK_K=option.block_keys,
                num_warps=option.num_warps, num_stages=option.num_stages,
            )  # fmt: skip
            return
        except _kernels().OutOfResources:
            if option is options[-1]:
                raise
            _too_large.add((option, *known))


def _sizes(key: int, value: int) -> dict[str, int]:
    return {
        "KEY_SIZE": key, "VALUE_SIZE": value, "BLOCK_D": _tile(key), "BLOCK_V": _tile(value)
    }  # fmt: skip


def _tile(size: int) -> int:
    return max(_MIN_TILE, power_of_two(size))
