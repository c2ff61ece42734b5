"""Products and norms of a pass: the fastest exact one for each, with one layout of the weights.

Up to some rows a product compiled from C reads the weight as it lies in memory; ``choose`` measures
up to how many and with how many threads. More rows take torch's own product.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.int8 import dequantise, quantise
from pasta_lm.engines.cpu.library import MAX_ROWS, CompiledLinear, HugePages
from pasta_lm.machine import multiplies_bfloat16, processor, remembered

MAX_COPIED_ELEMENTS = 700_000_000  # larger models stay in their files
FILE = "compiled-rows.json"  # in the cache folder
CANDIDATES = (128, 64, 32, 16, 12, 8, 6, 4, 2, 1)
MIN_WEIGHTS = 20_000_000  # fewer stay in the processor's caches: measuring would mislead
MAX_WEIGHTS = 60_000_000  # of more, every n-th layer is measured
NUM_ROUNDS = 3
CLEAR_GAIN = 0.97  # more threads must save so much: others can use them

# Legend: R rows, I inputs, O outputs, F width of a feed-forward layer.


class Linear:
    """One linear layer, or several of the same input side by side, with one layout of its weights.

    The weight is [O, I], of the activations' ``dtype`` or int8 codes with scales [O]; the bias [O].
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, scales: Tensor | None, dtype: torch.dtype
    ) -> None:
        self.weight, self.bias, self.scales, self.dtype = weight, bias, scales, dtype
        self.shape = tuple(weight.shape)
        self.compiled: CompiledLinear | None = None
        self.compiled_rows = 0  # the compiled product is used up to so many
        self.before: RmsNorm | Gate | None = None
        if weight.is_contiguous() and library.fits(weight):
            self.compiled = CompiledLinear(weight, bias, scales, dtype)
            self.compiled_rows = MAX_ROWS
        self.__name__ = "linear"  # its name in a printed graph

    def __reduce__(self) -> tuple[object, ...]:
        """Let a stored layer be made anew: addresses in memory are not kept."""
        parts = self.weight, self.bias, self.scales, self.dtype
        return Linear, parts, self.before

    def __setstate__(self, before: RmsNorm | Gate) -> None:
        self.put_before(before)

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
        return self.uncompiled(x, residual)

    def uncompiled(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Do the same by torch's own operations."""
        x = x if self.before is None else self.before(x)
        weight = self.weight if self.scales is None else dequantise(self.weight, self.scales)
        out = F.linear(x, weight.to(x.dtype), self.bias)
        return out if residual is None else out + residual

    def rows(self, indices: Tensor) -> Tensor:
        """Return rows of the weights that codes stand for, as an embedding does."""
        assert self.scales is not None
        return dequantise(self.weight[indices], self.scales[indices])


def join(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    *,
    may_copy: bool = True,
    pages: HugePages | None = None,
    is_int8: bool = False,
) -> Linear:
    """Return the layer of weights [O, I] each and biases [O] or None, which have the same input.

    ``may_copy``: into ``pages``, memory for weights; ``is_int8``: as codes, where such products are
    compiled. The parameters become views of the layer's weight, so that it is not kept twice.
    """
    weight = (weights[0] if len(weights) == 1 else torch.cat(list(weights))).detach()
    bias, pages = _joined(weights, biases), pages or HugePages()
    can_compile = library.fits(weight) and weight.is_contiguous()
    codes, scales = None, None
    if is_int8 and can_compile:
        codes, scales = quantise(weight)
        if not torch.equal(dequantise(codes, scales), weight.float()):
            codes = None
    if can_compile and codes is None and may_copy:
        weight = pages.copy(weight)
    for each, part in zip(weights, weight.split(list(map(len, weights))), strict=True):
        each.data = part
    if codes is not None:
        return Linear(pages.copy(codes), bias, scales, weight.dtype)
    return Linear(weight, bias, None, weight.dtype)


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


def choose(layers: Sequence[Linear]) -> None:
    """Let compiled products use the threads, and take the rows, with which they are fastest.

    The threads are those of all compiled functions of the process: the model loaded last decides.
    """
    compiled = [layer for layer in layers if layer.compiled is not None]
    num_weights = sum(layer.shape[0] * layer.shape[1] for layer in compiled)
    if num_weights < MIN_WEIGHTS:
        return
    measured = compiled[:: ceil(num_weights / MAX_WEIGHTS)]
    shapes = sorted(
        {(*layer.shape, str(layer.dtype), layer.scales is not None) for layer in measured}
    )
    machine = platform.machine(), os.cpu_count(), torch.get_num_threads()
    key = repr((shapes, machine, torch.__version__, library.version()))
    is_busy = library.idle_cores() < torch.get_num_threads()  # what is measured then is wrong
    choice = remembered(FILE, key, lambda: None if is_busy else _measure(measured))
    if choice is None:
        return
    library.use_threads(choice["threads"])
    for layer in compiled:
        layer.compiled_rows = choice["rows"]


def faster_dtype() -> tuple[torch.dtype, str]:
    """Return bfloat16 where this processor multiplies it, and faster, else float32; and why."""
    if not multiplies_bfloat16():
        return torch.float32, "the processor does not multiply bfloat16"
    key = repr((processor(), torch.__version__, library.version()))
    ratio = remembered("bfloat16.json", key, _bfloat16_ratio)
    dtype = torch.bfloat16 if ratio < CLEAR_GAIN else torch.float32
    return dtype, f"products of bfloat16 take {ratio:.2f} times as long as those of float32"


def _bfloat16_ratio() -> float:
    seconds = []
    for dtype in (torch.bfloat16, torch.float32):
        layers = [join([torch.ones(2048, 1024, dtype=dtype)], [None]) for _ in range(8)]
        is_compiled = layers[0].compiled is not None
        seconds.append(sum(_seconds(layers, rows, is_compiled=is_compiled) for rows in (1, 16)))
    return seconds[0] / seconds[1]


def _measure(layers: Sequence[Linear]) -> dict[str, int]:
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
