"""Products and norms of passes of a few rows: the fastest exact one for each.

Few rows take the weight as it lies in memory, by a product compiled from C; ``choose`` measures up
to how many rows and with how many threads. More rows take weights packed for oneDNN, or torch's own
product. With AVX-512 the packed product of four rows is faster than that of fewer: these are filled
up. A CPU without bfloat16 instructions packs a float32 copy: inputs and results stay bfloat16.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from functools import cache
from math import ceil
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.eight_bits import FLOAT8, INT8, MAX_FLOAT8_ROWS, EightBits, dequantise
from pasta_lm.engines.cpu.library import MAX_ROWS, CompiledLinear, HugePages
from pasta_lm.machine import remembered

if TYPE_CHECKING:
    from pasta_lm.engines.gpu.float8 import Float8Linear

PACKED_ROWS = 4  # the rows that packed weights are laid out for; fewer are filled up
MIN_PACKED_ELEMENTS = 300_000  # below it, packing costs more than it saves
MAX_COPIED_ELEMENTS = 700_000_000  # larger models are not copied, to save memory
FILE = "compiled-choice.json"  # in the cache folder
CANDIDATES = (64, 32, 16, 12, 8, 6, 4, 2, 1)
MIN_WEIGHTS = 20_000_000  # fewer stay in the processor's caches: measuring would mislead
MAX_WEIGHTS = 60_000_000  # of more, every n-th layer is measured
NUM_ROUNDS = 3
CLEAR_GAIN = 0.97  # more threads must save so much: others can use them

# Legend: R rows, I inputs, O outputs, F width of a feed-forward layer.


class Linear:
    """One linear layer, or several of the same input side by side.

    Weights are [O, I] each, biases [O] or None. ``may_copy``: into better layouts; ``pages``:
    memory for weights that are read as they are; ``eight_bits``: how codes stand for the weights.
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
        self.compiled_rows = 0  # the compiled product is used up to so many
        self.before: RmsNorm | Gate | None = None
        self.shape = sum(map(len, weights)), weights[0].shape[1]  # O and I
        self.dtype = weights[0].dtype
        self.reads_codes = False  # passes of few rows read weights of eight bits
        self._float8: Float8Linear | None = None
        weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.weight: Tensor = weight.detach()
        self._bias = _joined(weights, biases)
        self.packed: Tensor | None = None
        self._emulates_bfloat16 = False
        if weights[0].device.type != "cpu":
            if eight_bits is FLOAT8:
                self._read_float8()
        elif self.dtype in (torch.float32, torch.bfloat16):
            self._prepare_for_cpu(pages or HugePages(), eight_bits, may_copy=may_copy)
        # The parameters are views, so that no layout is kept twice.
        for each, part in zip(weights, self.weight.split(list(map(len, weights))), strict=True):
            each.data = part
        self.__name__ = "linear"  # its name in a printed graph

    def _prepare_for_cpu(
        self, pages: HugePages, eight_bits: EightBits | None, *, may_copy: bool
    ) -> None:
        if eight_bits is INT8 and self._read_codes(pages):
            return
        if library.fits(self.weight) and self.weight.is_contiguous():
            self.weight = pages.copy(self.weight) if may_copy else self.weight
            self.compiled = CompiledLinear(self.weight, self._bias, None, self.dtype)
            self.compiled_rows = MAX_ROWS
        if not may_copy:
            return
        weight = self.weight
        self._emulates_bfloat16 = self.dtype == torch.bfloat16 and not has_bfloat16()
        if self._emulates_bfloat16:
            weight = weight.float()
            self._bias = None if self._bias is None else self._bias.float()
        if weight.numel() >= MIN_PACKED_ELEMENTS and torch.backends.mkldnn.is_available():
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)

    def _read_codes(self, pages: HugePages) -> bool:
        if not library.fits(self.weight):
            return False
        codes, scales = INT8.quantise(self.weight)
        if not torch.equal(dequantise(codes, scales), self.weight):
            return False
        self.compiled = CompiledLinear(pages.copy(codes), self._bias, scales, self.dtype)
        self.compiled_rows, self.reads_codes = MAX_ROWS, True
        return True

    def _read_float8(self) -> None:
        from pasta_lm.engines.gpu.float8 import Float8Linear

        codes, scales = FLOAT8.quantise(self.weight)
        if torch.equal(dequantise(codes, scales), self.weight.float()):
            self._float8 = Float8Linear(codes, scales, self._bias)
            self.reads_codes = True

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
        """Do the same by torch's own operations."""
        if self.before is not None:
            x = self.before(x)
        if not self._emulates_bfloat16:
            return self._product(x, residual)
        out = self._product(x.float(), None).bfloat16()
        return out if residual is None else out + residual

    def _product(self, x: Tensor, residual: Tensor | None) -> Tensor:
        if self.packed is not None:
            return _packed_product(x, self.packed, self._bias, residual)
        out = F.linear(x, self.weight.to(x.dtype), self._bias)
        return out if residual is None else out + residual


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

    On a CPU it is the fused layer norm of (x, -x): its mean is 0, its variance the mean square.
    ``rounds_before``: round to the input's dtype before multiplying by the weight, too.
    """

    def __init__(self, eps: float, weight: Tensor | None, *, rounds_before: bool = False) -> None:
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
            out = F.rms_norm(x, (size,), None if self._rounds_before else self.weight, self.eps)
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
        self.name = name  # 'silu', or 'gelu' by tanh
        self.__name__ = "gate"

    def __call__(self, x: Tensor) -> Tensor:
        """Return [..., F] for gates and values side by side, [..., 2 F]."""
        gates, values = x.chunk(2, dim=-1)
        active = F.silu(gates) if self.name == "silu" else F.gelu(gates, approximate="tanh")
        return active * values


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


def choose(layers: Sequence[Linear]) -> None:
    """Let compiled products use the threads, and take the rows, with which they are fastest.

    The threads are those of all compiled functions of the process: the model loaded last decides.
    """
    compiled = [layer for layer in layers if layer.compiled is not None]
    num_weights = sum(layer.shape[0] * layer.shape[1] for layer in compiled)
    if num_weights < MIN_WEIGHTS:
        return
    measured = compiled[:: ceil(num_weights / MAX_WEIGHTS)]
    shapes = sorted({(*layer.shape, str(layer.dtype), layer.reads_codes) for layer in measured})
    machine = platform.machine(), os.cpu_count(), torch.get_num_threads()
    key = repr((shapes, machine, torch.__version__, library.version()))
    choice = remembered(FILE, key, lambda: _measure(measured))
    library.use_threads(choice["threads"])
    for layer in compiled:
        layer.compiled_rows = choice["rows"]


def _measure(layers: Sequence[Linear]) -> dict[str, int]:
    """Return the fewest threads that are fast enough, and with them the largest number of rows."""
    seconds, most = {}, torch.get_num_threads()
    for threads in (most >> shift for shift in range(most.bit_length())):
        library.use_threads(threads)
        seconds[threads] = _seconds(layers, 1, is_compiled=True)
    enough = min(seconds.values()) / CLEAR_GAIN
    threads = min(count for count, spent in seconds.items() if spent <= enough)
    library.use_threads(threads)
    faster = (
        rows
        for rows in CANDIDATES
        if _seconds(layers, rows, is_compiled=True) < _seconds(layers, rows, is_compiled=False)
    )
    return {"threads": threads, "rows": next(faster, 0)}


@torch.inference_mode()
def _seconds(layers: Sequence[Linear], rows: int, *, is_compiled: bool) -> float:
    products = [layer.compiled if is_compiled else layer.uncompiled for layer in layers]
    widths = [layer.shape[1] * (1 + isinstance(layer.before, Gate)) for layer in layers]
    pairs = zip(layers, widths, strict=True)
    inputs = [torch.ones(1, rows, width, dtype=layer.dtype) for layer, width in pairs]
    rounds = []
    for _ in range(NUM_ROUNDS + 1):  # the first allocates
        began = time.perf_counter()
        for product, x in zip(products, inputs, strict=True):
            assert product is not None
            product(x)
        rounds.append(time.perf_counter() - began)
    return min(rounds[1:])
