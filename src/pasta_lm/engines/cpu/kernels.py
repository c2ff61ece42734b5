"""Products and norms of a pass: the fastest exact one for each, with one layout of the weights.

A product compiled from C reads the weight as it lies in memory. A row's result does not depend on
the other rows, so company changes no bit. Where torch's own product of many rows is faster, in
float32 and with AMX in bfloat16, more than ``MAX_ROWS`` rows take that one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.int8 import multiply
from pasta_lm.engines.cpu.library import MAX_ROWS, CompiledLinear, HugePages
from pasta_lm.machine import has_amx
from pasta_lm.models.load import leave_memory

MAX_COPIED_ELEMENTS = 700_000_000  # larger models stay in their files

# Legend: R rows, I inputs, O outputs, F width of a feed-forward layer.


class Linear:
    """One linear layer, or several of the same input side by side, with one layout of its weights.

    The weight is [O, I], of the activations' ``dtype`` or int8 codes with scales [O]; the bias [O].
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, scales: Tensor | None, dtype: torch.dtype
    ) -> None:
        self.weight, self.bias, self.scales, self.dtype = weight, bias, scales, dtype
        self.compiled: CompiledLinear | None = None
        self.before: RmsNorm | Gate | None = None
        if weight.is_contiguous() and library.fits(weight):
            self.compiled = CompiledLinear(weight, bias, scales, dtype)
        has_faster = has_amx() if dtype == torch.bfloat16 else scales is None
        self._max_rows = MAX_ROWS if has_faster else math.inf  # that a compiled product takes
        self.__name__ = "linear"  # its name in a printed graph

    def put_before(self, before: RmsNorm | Gate) -> None:
        self.before = before
        if self.compiled is not None:
            if isinstance(before, Gate):
                self.compiled.put_before(before.name)
            else:
                self.compiled.put_before("rms_norm", before.eps, before.weight)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return x [1, R, I] times the weights transposed, plus biases and residual: [1, R, O].

        Behind a gate x is [1, R, 2 I].
        """
        if self.compiled is not None and x.shape[1] <= self._max_rows:
            return self.compiled(x, residual)
        x = x if self.before is None else self.before(x)
        if self.scales is None:
            out = F.linear(x, self.weight, self.bias)
        else:
            out = multiply(x, self.weight, self.scales, self.bias)
        return out if residual is None else out + residual


def join(
    weights: Sequence[Tensor], biases: Sequence[Tensor | None],
    scales: Sequence[Tensor | None] = (), *, may_copy: bool = True, pages: HugePages | None = None,
) -> Linear:  # fmt: skip
    """Return the layer of weights [O, I] each and biases [O] or None, which have the same input.

    ``scales``, [O] each, if there are any: the weights are int8 codes. ``may_copy``: into
    ``pages``, memory for weights. The parameters become views of the layer's weight, so that it is
    not kept twice.
    """
    weight = (weights[0] if len(weights) == 1 else torch.cat(list(weights))).detach()
    pages, bias = pages or HugePages(), None
    if some := [part for part in biases if part is not None]:
        pairs = zip(weights, biases, strict=True)
        parts = [some[0].new_zeros(len(w)) if part is None else part for w, part in pairs]
        bias = torch.cat(parts).detach()
    known = [scale for scale in scales if scale is not None]
    if (may_copy or known) and weight.is_contiguous() and library.fits(weight):
        weight = pages.copy(weight)
    for weight_OI, view in zip(weights, weight.split(list(map(len, weights))), strict=True):
        before, weight_OI.data = weight_OI.data, view
        if before.data_ptr() != view.data_ptr():
            leave_memory(before)
    if known:
        return Linear(weight, bias, torch.cat(known), torch.float32)
    return Linear(weight, bias, None, weight.dtype)


class RmsNorm:
    """Divide by the root of the mean square over the last dimension, then multiply by a weight.

    On a CPU it is the fused layer norm of (x, -x): its mean is 0, its variance the mean square.
    It rounds to the input's dtype before multiplying by the weight, too.
    """

    def __init__(self, eps: float, weight: Tensor | None) -> None:
        self.eps = eps
        self.weight = None if weight is None else weight.detach()
        self.__name__ = "rms_norm"

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalised input, [..., D]."""
        size = x.shape[-1]
        if x.device.type != "cpu":
            out = F.rms_norm(x, (size,), None, self.eps)
        else:
            mirrored = torch.cat((x, -x), dim=-1)
            out = torch.layer_norm(mirrored, (2 * size,), None, None, self.eps)[..., :size]
        return out if self.weight is None else self.weight * out


class Gate:
    """The gate of a feed-forward layer: an activation of the first half, times the second."""

    def __init__(self, name: str) -> None:
        self.name = name  # 'silu', or 'gelu' by tanh
        self.__name__ = "gate"

    def __call__(self, x: Tensor) -> Tensor:
        """Return [..., F] for gates and values side by side, [..., 2 F]."""
        gates, values = x.chunk(2, dim=-1)
        active = F.silu(gates) if self.name == "silu" else F.gelu(gates, approximate="tanh")
        return active * values
