"""Products of a few rows with weights as they lie in memory, by ``linear.c``."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.library import STEP, TYPES, address

MAX_ROWS = 16  # where choice.py measures nothing
BEFORE = {None: 0, "rms_norm": 1, "silu": 2, "gelu": 3}

# Legend: R rows, I inputs, O outputs.


class _Linear(ctypes.Structure):
    """The structure ``Linear`` of the source."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("norm_weight", ctypes.c_void_p),
        ("num_inputs", ctypes.c_int64),
        ("num_outputs", ctypes.c_int64),
        ("weight_type", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("before", ctypes.c_int32),
        ("eps", ctypes.c_float),
    ]


class CompiledLinear:
    """A product of a few rows with a weight as it lies in memory, and what stands before it.

    Args:
        weight: [O, I], contiguous: float32 or bfloat16 as the activations, or int8.
        bias: [O], or None.
        scales: With int8: what each output is multiplied with, [O].
        dtype: Of the activations, float32 or bfloat16.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, scales: Tensor | None, dtype: torch.dtype
    ) -> None:
        floats = [None if each is None else each.detach().float() for each in (scales, bias)]
        self._kept: list[Tensor | None] = [weight, *floats]  # the structure has their addresses
        self._num_outputs, inputs = weight.shape
        self._layout = _Linear(
            weight=weight.data_ptr(), scales=address(floats[0]), bias=address(floats[1]),
            num_inputs=inputs, num_outputs=len(weight),
            weight_type=TYPES[weight.dtype], type=TYPES[dtype],
        )  # fmt: skip
        self._dtype = dtype
        self._run = library.functions().linear  # type: ignore[union-attr]
        self._reference = ctypes.byref(self._layout)

    def put_before(self, name: str, eps: float = 0.0, norm_weight: Tensor | None = None) -> None:
        """Compute a norm or a gate before the product, by its name in ``BEFORE``."""
        floats = None if norm_weight is None else norm_weight.detach().float()
        self._kept.append(floats)
        self._layout.before, self._layout.eps = BEFORE[name], eps
        self._layout.norm_weight = address(floats)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the product of x [1, R, I] (behind a gate [1, R, 2 I]), as ``Linear`` does."""
        num_rows = x.shape[1]
        x = x if x.stride(2) == 1 else x.contiguous()
        residual = None if residual is None else residual.contiguous()
        out = torch.empty((1, num_rows, self._num_outputs), dtype=self._dtype)
        failed = self._run(
            self._reference, x.data_ptr(), x.stride(1), address(residual), out.data_ptr(),
            num_rows, library.num_threads(),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"no memory for {num_rows} rows of a product")
        return out


def fits(weight: Tensor) -> bool:
    """Return whether there are compiled products and they take a weight [O, I]."""
    is_right = weight.dtype in TYPES and weight.device.type == "cpu"
    return is_right and weight.shape[1] % STEP == 0 and library.functions() is not None
