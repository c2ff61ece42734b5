"""Kernels for passes of one row and of a few: products and norms, the fastest exact one for each.

Decoding multiplies each weight with one row (a single thread) or a few (several): on a CPU the
default product is good for neither.

- Few rows: a product compiled from C, where there is a compiler. ``choice.py`` measures up to how
  many rows it is the fastest. It reads weights of eight bits where a model has them.
- More rows, and large weights: packed for oneDNN. With AVX-512 its product of four rows is faster
  than that of one, two or three, so fewer rows are filled up to four.
- Without a compiler and without AVX-512, one row of float32 goes to weights stored transposed; so
  do all products of small float32 weights (``benchmarks/products.py``).

A CPU without bfloat16 instructions packs a float32 copy of bfloat16 weights: inputs, products and
the rounding of the result stay those of bfloat16, only the slow emulation of its arithmetic goes.

Memory: at most two layouts of each large weight, of which one is the model's own parameters: these
become views of weights side by side, or of a transposed layout. Such a model computes as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from pasta_lm.engines.cpu import linear as compiled
from pasta_lm.engines.cpu.huge_pages import HugePages
from pasta_lm.engines.cpu.linear import MAX_ROWS, CompiledLinear
from pasta_lm.models.eight_bits import FLOAT8, INT8, MAX_FLOAT8_ROWS, EightBits, dequantise

if TYPE_CHECKING:
    from pasta_lm.engines.gpu.float8 import Float8Linear

PACKED_ROWS = 4  # the rows that packed weights are laid out for; fewer are filled up
MIN_PACKED_ELEMENTS = 300_000  # below it, packing costs more than it saves
MAX_TRANSPOSED_ROWS = 16  # above it the default product is faster
MAX_COPIED_ELEMENTS = 700_000_000  # larger models are not copied, to save memory

# Legend: R rows, I inputs, O outputs, F width of a feed-forward layer.


class Linear:
    """One linear layer, or several of the same input side by side.

    Args:
        weights: [O, I] each.
        biases: [O] each, or None.
        may_copy: Whether the weights may be copied into better layouts. Their parameters then
            become views of one of them, so that two layouts are kept and not three.
        pages: Where weights are copied to that are read as they are.
        eight_bits: How codes stand for the weights, exactly, if they do.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor | None],
        *,
        may_copy: bool = True,
        pages: HugePages | None = None,
        eight_bits: EightBits | None = None,
    ) -> None:
        self.compiled: CompiledLinear | None = None
        self.compiled_rows = 0
        """Up to how many rows the compiled product is used."""
        self.before: RmsNorm | Gate | None = None
        self.shape = sum(map(len, weights)), weights[0].shape[1]
        """O and I."""
        self.dtype = weights[0].dtype
        self.reads_codes = False
        """Whether passes of few rows read weights of eight bits."""
        self._float8: Float8Linear | None = None
        self._weight: Tensor | None = None  # [O, I]
        self._bias = _joined(weights, biases)
        self._transposed: Tensor | None = None
        self._packed: Tensor | None = None
        self._emulates_bfloat16 = False
        if weights[0].device.type == "cpu":
            pages = pages or HugePages()
            self._prepare_for_cpu(weights, pages, eight_bits, may_copy=may_copy)
        if self._packed is None and self._transposed is None and self._weight is None:
            self._weight = _side_by_side(weights)
            if eight_bits is FLOAT8:
                self._read_float8(self._weight)
        self.__name__ = "linear"  # its name in a printed graph

    def _prepare_for_cpu(
        self,
        weights: Sequence[Tensor],
        pages: HugePages,
        eight_bits: EightBits | None,
        *,
        may_copy: bool,
    ) -> None:
        dtype = weights[0].dtype
        self._emulates_bfloat16 = may_copy and dtype == torch.bfloat16 and not has_bfloat16()
        if dtype not in (torch.float32, torch.bfloat16):
            return
        weight = _side_by_side(weights)
        if eight_bits is INT8 and self._read_codes(weight, pages):
            self._weight = weight
            _view(weights, weight.split([len(each) for each in weights]))
            return
        if compiled.fits(weight) and weight.is_contiguous():
            weight = pages.copy(weight) if may_copy else weight
            self._weight = weight
            self.compiled = CompiledLinear(weight, self._bias, None, dtype)
            self.compiled_rows = MAX_ROWS
            _view(weights, weight.split([len(each) for each in weights]))
        if may_copy:
            self._copy(weights, weight)

    def _read_codes(self, weight: Tensor, pages: HugePages) -> bool:
        """Let few rows read the codes of a weight, if there are codes that stand for it."""
        if not compiled.fits(weight):
            return False
        codes, scales = INT8.quantise(weight)
        if not torch.equal(dequantise(codes, scales), weight):
            return False
        self.compiled = CompiledLinear(pages.copy(codes), self._bias, scales, weight.dtype)
        self.compiled_rows, self.reads_codes = MAX_ROWS, True
        return True

    def _read_float8(self, weight: Tensor) -> None:
        """Let few rows on a GPU read the codes of a weight, if there are codes for it."""
        from pasta_lm.engines.gpu.float8 import Float8Linear

        codes, scales = FLOAT8.quantise(weight)
        if torch.equal(dequantise(codes, scales), weight.float()):
            self._float8 = Float8Linear(codes, scales, self._bias)
            self.reads_codes = True

    def _copy(self, weights: Sequence[Tensor], weight: Tensor) -> None:
        dtype = weight.dtype
        if self._emulates_bfloat16:
            weight = weight.float()
            self._bias = None if self._bias is None else self._bias.float()
        if weight.numel() >= MIN_PACKED_ELEMENTS and torch.backends.mkldnn.is_available():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
        if self.compiled is not None or weight.dtype != torch.float32:
            return
        if self._packed is None or not fills_up():
            self._transposed = weight.t().contiguous()
            if dtype == torch.float32:
                parts = self._transposed.split([len(each) for each in weights], dim=1)
                _view(weights, [part.t() for part in parts])

    def put_before(self, before: RmsNorm | Gate) -> None:
        """Compute a norm or a gate of the input first."""
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
        if self.compiled is not None and x.shape[1] <= self.compiled_rows:
            return self.compiled(x, residual)
        if self._float8 is not None and x.shape[1] <= MAX_FLOAT8_ROWS:
            return self._float8(x if self.before is None else self.before(x), residual)
        return self.uncompiled(x, residual)

    def uncompiled(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the same by torch's own operations."""
        if self.before is not None:
            x = self.before(x)
        if not self._emulates_bfloat16:
            return self._product(x, residual)
        out = self._product(x.float(), None).bfloat16()
        return out if residual is None else out + residual

    def _product(self, x: Tensor, residual: Tensor | None) -> Tensor:
        num_rows = x.shape[-2]
        if self._packed is not None and (num_rows > 1 or self._transposed is None):
            out = _packed_product(x, self._packed, self._bias, residual)
        elif self._transposed is not None and num_rows <= MAX_TRANSPOSED_ROWS:
            # One addition comes for free with the product.
            start = self._bias if residual is None else residual[0]
            if start is None:
                return torch.mm(x[0], self._transposed)[None]
            product = torch.addmm(start, x[0], self._transposed)[None]
            out = product if residual is None or self._bias is None else product + self._bias
        else:
            weight = self._weight if self._transposed is None else self._transposed.t()
            assert weight is not None
            out = F.linear(x, weight.to(x.dtype), self._bias)
            out = out if residual is None else out + residual
        return out


def _packed_product(
    x: Tensor, packed: Tensor, bias: Tensor | None, residual: Tensor | None
) -> Tensor:
    linear = torch.ops.mkldnn._linear_pointwise
    num_rows = x.shape[-2]
    if residual is None:
        out: Tensor = linear(_filled_up(x), packed, bias, "none", [], "")
    else:
        out = linear.binary(_filled_up(x), _filled_up(residual), packed, bias, "add")
    return out if out.shape[1] == num_rows else out[:, :num_rows]


def _filled_up(x: Tensor) -> Tensor:
    """Return x [1, R, D] with as many rows as the product with packed weights is fast for."""
    num_rows = x.shape[-2]
    if num_rows >= PACKED_ROWS or not fills_up():
        return x.contiguous()
    if num_rows == 1:
        return x.expand(-1, PACKED_ROWS, -1).contiguous()  # cheaper than zeros
    return F.pad(x, (0, 0, 0, PACKED_ROWS - num_rows))


class RmsNorm:
    """Divide by the root of the mean square over the last dimension, then multiply by a weight.

    On a CPU there is a fused layer norm but no fused root mean square norm. The two are the same
    for (x, -x): its mean is zero and its variance is the mean square of x.
    """

    def __init__(self, eps: float, weight: Tensor | None, *, rounds_before: bool = False) -> None:
        """Keep the settings.

        Args:
            eps: Added to the mean square.
            weight: [D] of the input's dtype, or None.
            rounds_before: Round to the input's dtype before multiplying by the weight, too.
        """
        self.eps = eps
        self.weight = None if weight is None else weight.detach()
        self._rounds_before = rounds_before and weight is not None
        self._mirrored: Tensor | None = None
        if self.weight is not None and not self._rounds_before:
            self._mirrored = torch.cat((self.weight, self.weight))
        self.__name__ = "rms_norm"

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalised input, [..., D]."""
        size = x.shape[-1]
        if x.device.type != "cpu":
            weight = None if self._rounds_before else self.weight
            out = F.rms_norm(x, (size,), weight, self.eps)
        else:
            mirrored = torch.cat((x, -x), dim=-1)
            out = torch.layer_norm(mirrored, (2 * size,), self._mirrored, None, self.eps)
            out = out[..., :size]
        if not self._rounds_before:
            return out
        assert self.weight is not None
        return self.weight * out


class Gate:
    """The gate of a feed-forward layer: an activation of the first half, times the second."""

    def __init__(self, name: str) -> None:
        """Keep the activation: 'silu', or 'gelu' by tanh."""
        self.name = name
        self.__name__ = "gate"

    def __call__(self, x: Tensor) -> Tensor:
        """Return [..., F] for gates and values side by side, [..., 2 F]."""
        gates, values = x.chunk(2, dim=-1)
        active = F.silu(gates) if self.name == "silu" else F.gelu(gates, approximate="tanh")
        return active * values


def _side_by_side(weights: Sequence[Tensor]) -> Tensor:
    return (weights[0] if len(weights) == 1 else torch.cat(list(weights))).detach()


def _view(weights: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Let parameters be views of a copy whose values they have."""
    for weight, part in zip(weights, parts, strict=True):
        weight.data = part


def _joined(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor | None:
    if all(bias is None for bias in biases):
        return None
    parts = [
        weight.new_zeros(len(weight)) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return torch.cat(parts).detach()


@cache
def fills_up() -> bool:
    """Return whether packed weights take four rows faster than fewer on this CPU."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


@cache
def has_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware, or packs it for oneDNN."""
    try:
        torch.ops.mkldnn._reorder_linear_weight(torch.zeros(8, 8, dtype=torch.bfloat16), 1)
    except RuntimeError:
        return False
    return True
