"""Matrix products for passes of one row and of a few: the fastest exact kernel for each.

Decoding multiplies each weight with one row (a single thread) or a few (several): on a CPU the
default product is good for neither. One row goes to weights stored transposed, several go to
weights packed for oneDNN. A CPU without bfloat16 instructions keeps a float32 copy of bfloat16
weights: inputs, products and the rounding of the result stay those of bfloat16, only the slow
emulation of its arithmetic goes. Memory: up to two more copies of the linear weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

PACKED_ROWS = 4
"""The number of rows that packed weights are laid out for."""
LEAST_PACKED_ELEMENTS = 300_000
"""Below it a packed product's fixed cost outweighs what it saves."""
MOST_COPIED_ELEMENTS = 700_000_000
"""A weight is copied only while all copied weights together stay below this."""

# Legend: R rows, I inputs, O outputs.


class Linear:
    """One linear layer, or several of the same input side by side.

    Args:
        weights: [O, I] each.
        biases: [O] each, or None.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
        self._weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self._weight = self._weight.detach()
        self._bias = _joined(weights, biases)
        self._transposed: Tensor | None = None
        self._packed: Tensor | None = None
        self._emulates_bfloat16 = False
        if self._weight.device.type == "cpu" and self._weight.numel() < MOST_COPIED_ELEMENTS:
            self._prepare_for_cpu()
        self.__name__ = "linear"  # what a printed graph calls it

    def _prepare_for_cpu(self) -> None:
        weight = self._weight
        if weight.dtype == torch.bfloat16 and not has_bfloat16():
            self._emulates_bfloat16 = True
            weight = weight.float()
            self._bias = None if self._bias is None else self._bias.float()
            self._weight = weight
        elif weight.dtype != torch.float32:
            return
        self._transposed = weight.t().contiguous()
        if weight.numel() >= LEAST_PACKED_ELEMENTS and torch.backends.mkldnn.is_available():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x times the weights transposed, plus the biases: [1, R, I] -> [1, R, O]."""
        if self._emulates_bfloat16:
            return self._product(x.float()).bfloat16()
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        num_rows = x.shape[-2]
        if self._packed is not None and num_rows > 1:
            linear = torch.ops.mkldnn._linear_pointwise
            return linear(x.contiguous(), self._packed, self._bias, "none", [], "")  # type: ignore[no-any-return]
        if self._transposed is not None and num_rows <= 16:
            if self._bias is None:
                return torch.mm(x[0], self._transposed)[None]
            return torch.addmm(self._bias, x[0], self._transposed)[None]
        return F.linear(x, self._weight, self._bias)


def _joined(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor | None:
    if all(bias is None for bias in biases):
        return None
    parts = [
        weight.new_zeros(len(weight)) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return torch.cat(parts).detach()


@cache
def has_bfloat16() -> bool:
    """Tell whether this CPU multiplies bfloat16 in hardware, or packs it for oneDNN."""
    try:
        torch.ops.mkldnn._reorder_linear_weight(torch.zeros(8, 8, dtype=torch.bfloat16), 1)
    except RuntimeError:
        return False
    return True
