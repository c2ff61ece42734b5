"""Attention of the new tokens of each request of a pass, by ``attention.c``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.library import STEP, TYPES, address

STRIDES = ("q_row", "q_head", "k_row", "k_head", "v_row", "v_head")

# Legend: N tokens of the pass, Q those of one request, K its entries, V entries that a query sees,
# G key/value heads, H query heads, D head size, S slots of the pool, C columns of a joined tensor.


class _Request(ctypes.Structure):
    """The structure ``Request`` of the source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("slots", "starts")),
        *((name, ctypes.c_int64) for name in ("first_slot", "first_row", "origin")),
    ]


class _Attention(ctypes.Structure):
    """The structure ``Attention`` of the source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("requests", "request_of")),
        *((name, ctypes.c_int64) for name in ("first_row", "num_rows")),
        *((name, ctypes.c_int64) for name in ("num_groups", "num_heads", "size", "num_pool_slots")),
        *((name, ctypes.c_int32) for name in ("type", "num_threads")),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v")),
        *((name, ctypes.c_int64) for name in STRIDES),
        *((name, ctypes.c_void_p) for name in ("cos", "sin", "keys", "values", "out")),
        ("scale", ctypes.c_float),
    ]


class Heads(NamedTuple):
    """Queries, keys and values of N tokens."""

    num_heads: int  # H
    num_groups: int  # G
    size: int  # D
    dtype: torch.dtype
    layouts: Sequence[tuple[int, int, int]]
    """Address of the first element, strides of rows and heads in elements: of q, k and v."""

    @classmethod
    def of(cls, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Heads:
        """Return the heads of three tensors, whose last dimension must be contiguous."""
        layouts = [(x.data_ptr(), x.stride(1), x.stride(0)) for x in (q_HND, k_GND, v_GND)]
        return cls(len(q_HND), len(k_GND), q_HND.shape[-1], q_HND.dtype, layouts)

    @classmethod
    def joined(cls, joined_NC: Tensor, *shape: int) -> Heads:
        """Return the heads that stand side by side in the columns of one tensor.

        ``shape`` is the first column of queries, of keys and of values, then H, G and D.
        """
        *starts, num_heads, num_groups, size = shape
        first, width, row = joined_NC.data_ptr(), joined_NC.element_size(), joined_NC.stride(0)
        layouts = [(first + start * width, row, size) for start in starts]
        return cls(num_heads, num_groups, size, joined_NC.dtype, layouts)


class Queries(NamedTuple):
    """The new tokens of one request in a pass."""

    num_queries: int  # Q
    first_slot: int  # the slot of the first of them in the request's run
    origin: int  # the pool's slot at which that run begins
    visible_QK: Tensor | None  # bool, which entries each query sees; None: all up to its own


class CompiledAttention:
    """Attention of the tokens of one pass, in all layers.

    The requests are in the order of their rows, which are consecutive from ``first_row``.
    """

    def __init__(self, requests: Sequence[Queries], first_row: int = 0) -> None:
        self._kept: list[Tensor] = []  # the structures have their addresses
        self._requests = (_Request * len(requests))()
        counts = torch.tensor([queries.num_queries for queries in requests])
        request_of = torch.arange(len(requests), dtype=torch.int32).repeat_interleave(counts)
        row = first_row
        for request, queries in zip(self._requests, requests, strict=True):
            request.first_slot, request.first_row = queries.first_slot, row
            request.origin = queries.origin
            row += queries.num_queries
            if queries.visible_QK is not None:
                slots = queries.visible_QK.nonzero()[:, 1].int()
                starts = torch.zeros(queries.num_queries + 1, dtype=torch.int32)
                starts[1:] = queries.visible_QK.sum(1).cumsum(0)
                self._kept += slots, starts
                request.slots, request.starts = slots.data_ptr(), starts.data_ptr()
        self._kept.append(request_of)
        self._layout = _Attention(
            requests=ctypes.addressof(self._requests), request_of=request_of.data_ptr(),
            first_row=first_row, num_rows=row - first_row, num_threads=library.num_threads(),
        )  # fmt: skip
        self._run = library.functions().attend  # type: ignore[union-attr]
        self._reference = ctypes.byref(self._layout)

    def __call__(
        self, heads: Heads, rotation: tuple[Tensor, Tensor] | None, pool: tuple[Tensor, Tensor],
        scale: float | None, out: Tensor,
    ) -> None:  # fmt: skip
        """Write the new keys and values, then the attention output of the requests' tokens.

        ``pool`` are its keys and values, [G, S, D], ``out`` [N, H * D], contiguous. cos and
        sin in ``rotation`` are [N, D], contiguous, the first half of sin negated; None: queries
        and keys are rotated already.
        """
        layout, (keys, values) = self._layout, pool
        layout.num_groups, layout.size = heads.num_groups, heads.size
        layout.num_heads = heads.num_heads // heads.num_groups
        layout.num_pool_slots = keys.stride(-3) // heads.size
        layout.type = TYPES[heads.dtype]
        (
            (layout.q, layout.q_row, layout.q_head),
            (layout.k, layout.k_row, layout.k_head),
            (layout.v, layout.v_row, layout.v_head),
        ) = heads.layouts
        layout.cos, layout.sin = map(address, rotation or (None, None))
        layout.keys, layout.values = keys.data_ptr(), values.data_ptr()
        layout.scale = heads.size**-0.5 if scale is None else scale
        layout.out = out.data_ptr()
        if self._run(self._reference):
            raise MemoryError("no memory for attention")


def fits(*tensors: Tensor) -> bool:
    """Return whether there is compiled attention for such queries, keys, values, and pool."""
    dtype, size, device = tensors[0].dtype, tensors[0].shape[-1], tensors[0].device.type
    is_right = dtype in (torch.float32, torch.bfloat16) and device == "cpu" and size % STEP == 0
    is_alike = all((x.dtype, x.shape[-1], x.stride(-1)) == (dtype, size, 1) for x in tensors)
    return is_right and is_alike and library.functions() is not None
