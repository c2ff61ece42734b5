"""Triton kernels of a paged pass: write new keys, attend with the table of cutoffs, combine.

An instance of ``attend`` reads one part of a request's keys for one key head, for up to
``block_rows`` rows and all their query heads; ``combine`` joins the parts. Loop bounds are read
from memory: a captured launch serves any context. Source: Flash-Decoding (Dao et al. 2023).
"""

from __future__ import annotations

import triton
import triton.language as tl

# Legend: N rows, B blocks of rows, G key heads, H query heads, S slots of the pool, D head size,
# P pages of a request at most, O owners at most, M queries of an instance (rows times heads).

_FREE = ["num_rows", "num_blocks", "num_splits", "num_slots", "table_stride", "cutoff_stride"]
_FREE += ["scale", "softcap", "window"]


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
def place(rows, entries, num_rows, num_slots):
    """Write owner and position of each row into its slot of the pool: entries [2, S]."""
    row = tl.program_id(0)
    slot = tl.load(rows + 3 * num_rows + row)
    if slot >= 0:
        tl.store(entries + slot, tl.load(rows + 4 * num_rows + row))
        tl.store(entries + num_slots + slot, tl.load(rows + num_rows + row))


@triton.jit(do_not_specialize=["num_rows"])
def write(
    k, v, keys, values, rows, num_rows, k_stride_g, k_stride_n, v_stride_g, v_stride_n,
    pool_k_stride, pool_v_stride,
    KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Write the new keys [G, N, D] and values into their slots of one layer of the pool."""
    row, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(rows + 3 * num_rows + row).to(tl.int64)
    if slot >= 0:
        d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
        key = tl.load(k + head * k_stride_g + row * k_stride_n + d, mask=d < KEY_SIZE)
        value = tl.load(v + head * v_stride_g + row * v_stride_n + e, mask=e < VALUE_SIZE)
        tl.store(keys + head * pool_k_stride + slot * KEY_SIZE + d, key, mask=d < KEY_SIZE)
        tl.store(values + head * pool_v_stride + slot * VALUE_SIZE + e, value, mask=e < VALUE_SIZE)


@triton.jit
def _pool_slots(pages, slots, is_slot, PAGE: tl.constexpr):
    """Return the pool's slots that hold some slots of a request."""
    page = tl.load(pages + slots // PAGE, mask=is_slot, other=0)
    return page.to(tl.int64) * PAGE + slots % PAGE


@triton.jit
def _tanh(x):
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


# A new kernel is compiled for each constant, and for each number that Triton specialises.
@triton.jit(do_not_specialize=_FREE)
def attend(
    q, keys, values, rows, blocks, table, cutoffs, entries, parts, maxima, sums,
    num_rows, num_blocks, num_splits, num_slots, table_stride, cutoff_stride,
    q_stride_h, q_stride_n, pool_k_stride, pool_v_stride, scale, softcap, window,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    PAGE: tl.constexpr, HAS_CAP: tl.constexpr, HAS_WINDOW: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Attend of one block of rows over one part of its request's keys, for one key head."""
    block, split = tl.program_id(0), tl.program_id(2)
    head = tl.program_id(1).to(tl.int64)
    start, in_block = tl.load(blocks + block), tl.load(blocks + num_blocks + block)
    request = tl.load(blocks + 2 * num_blocks + block).to(tl.int64)
    num_keys = tl.load(blocks + 3 * num_blocks + block)
    m, d, e = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    row, q_head = start + m // GROUP, head * GROUP + m % GROUP
    is_query, row_cutoffs = m < in_block * GROUP, row.to(tl.int64) * cutoff_stride
    slots = tl.load(rows + 2 * num_rows + row, mask=is_query, other=-1)
    positions = tl.load(rows + num_rows + row, mask=is_query, other=0)
    at = q_head[:, None] * q_stride_h + row[:, None].to(tl.int64) * q_stride_n + d[None, :]
    queries = tl.load(q + at, mask=is_query[:, None] & (d[None, :] < KEY_SIZE), other=0.0)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.full([BLOCK_M], 0.0, tl.float32)
    summed = tl.full([BLOCK_M, BLOCK_V], 0.0, tl.float32)
    # Whole tiles, so that no tile is read by two instances.
    part = (num_keys + num_splits * BLOCK_K - 1) // (num_splits * BLOCK_K) * BLOCK_K
    stop = tl.minimum((split + 1) * part, num_keys)
    for first in range(split * part, stop, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        is_key = k < stop
        slot_k = _pool_slots(table + request * table_stride, k, is_key, PAGE)
        owner = tl.load(entries + slot_k, mask=is_key, other=0)
        valid = is_query[:, None] & is_key[None, :]
        cutoff = tl.load(cutoffs + row_cutoffs[:, None] + owner[None, :], mask=valid, other=0)
        seen = valid & (k[None, :] <= slots[:, None]) & (k[None, :] < cutoff)
        if HAS_WINDOW:
            stands = tl.load(entries + num_slots + slot_k, mask=is_key, other=0)
            seen = seen & (positions[:, None] - stands[None, :] < window)
        at_k = head * pool_k_stride + slot_k[None, :] * KEY_SIZE + d[:, None]
        key = tl.load(keys + at_k, mask=is_key[None, :] & (d[:, None] < KEY_SIZE), other=0.0)
        scores = tl.dot(queries, key, input_precision="ieee") * scale
        if HAS_CAP:
            scores = softcap * _tanh(scores / softcap)
        scores = tl.where(seen, scores, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, 1))
        finite = tl.where(now == float("-inf"), 0.0, now)  # a row that has seen nothing yet
        weights = tl.exp(scores - finite[:, None])
        shrink = tl.exp(largest - finite)
        total = total * shrink + tl.sum(weights, 1)
        at_v = head * pool_v_stride + slot_k[:, None] * VALUE_SIZE + e[None, :]
        value = tl.load(values + at_v, mask=is_key[:, None] & (e[None, :] < VALUE_SIZE), other=0.0)
        weights = weights.to(value.dtype)
        summed = summed * shrink[:, None] + tl.dot(weights, value, input_precision="ieee")
        largest = now
    cell = (split * num_rows + row.to(tl.int64)) * NUM_HEADS + q_head
    tl.store(maxima + cell, largest, mask=is_query)
    tl.store(sums + cell, total, mask=is_query)
    is_filled = is_query[:, None] & (e[None, :] < VALUE_SIZE) & (total[:, None] > 0)
    tl.store(parts + cell[:, None] * VALUE_SIZE + e[None, :], summed, mask=is_filled)


@triton.jit(do_not_specialize=["num_rows"])
def combine(
    parts, maxima, sums, rows, sinks, out, num_rows,
    NUM_HEADS: tl.constexpr, VALUE_SIZE: tl.constexpr,
    NUM_SPLITS: tl.constexpr, HAS_SINKS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Join the parts of one row and head: [NUM_SPLITS, N, H, D] to [N, H, D]; padding gives 0."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(rows + 2 * num_rows + row)
    e, split = tl.arange(0, BLOCK_V), tl.arange(0, NUM_SPLITS)
    is_part = split >= tl.where(slot >= 0, 0, NUM_SPLITS)  # padding has none
    cell = (split * num_rows + row) * NUM_HEADS + head
    largest = tl.load(maxima + cell, mask=is_part, other=float("-inf"))
    total = tl.load(sums + cell, mask=is_part, other=0.0)
    most = tl.max(largest, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        most = tl.maximum(most, sink)
    finite = tl.where(most == float("-inf"), 0.0, most)
    share = tl.exp(largest - finite)
    whole = tl.sum(total * share, 0)
    if HAS_SINKS:
        whole += tl.exp(sink - finite)
    # Parts that no key fell into were never written.
    is_filled = (total > 0)[:, None] & (e[None, :] < VALUE_SIZE)
    summed = tl.load(parts + cell[:, None] * VALUE_SIZE + e[None, :], mask=is_filled, other=0.0)
    result = tl.sum(summed * share[:, None], 0) / tl.where(whole > 0, whole, 1.0)
    to = (row * NUM_HEADS + head) * VALUE_SIZE + e
    tl.store(out + to, result.to(out.dtype.element_ty), mask=e < VALUE_SIZE)
