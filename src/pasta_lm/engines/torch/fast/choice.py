"""Choose by measurement up to how many rows compiled products are the fastest, once a machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pasta_lm.engines.torch.cache_folder import remembered
from pasta_lm.engines.torch.compiled import library
from pasta_lm.engines.torch.compiled.linear import MAX_ROWS
from pasta_lm.engines.torch.fast.kernels import Gate, Linear

FILE = "compiled-rows.json"  # in the cache folder
CANDIDATES = (2 * MAX_ROWS, MAX_ROWS, 6, 4, 2, 1)
MIN_WEIGHTS = 20_000_000  # fewer stay in the processor's caches: measuring would mislead
MAX_WEIGHTS = 60_000_000  # of more, some layers are measured
NUM_ROUNDS = 3


def choose_rows(layers: Sequence[Linear]) -> None:
    """Let layers use compiled products for as many rows as they are faster than torch's."""
    compiled = [layer for layer in layers if layer.compiled is not None]
    if sum(map(_size, compiled)) < MIN_WEIGHTS:
        return
    measured = _some(compiled)
    rows = remembered(FILE, _key(measured), lambda: _measure(measured))
    for layer in compiled:
        layer.compiled_rows = rows


def _measure(layers: Sequence[Linear]) -> int:
    """Return the largest candidate at which compiled products take less time, or 0."""
    for rows in CANDIDATES:
        inputs = [torch.ones(1, rows, _width(layer), dtype=layer.dtype) for layer in layers]
        own = [layer.compiled for layer in layers if layer.compiled is not None]
        others = [layer.uncompiled for layer in layers]
        if _seconds([partial(each, residual=None) for each in own], inputs) < _seconds(
            others, inputs
        ):
            return rows
    return 0


@torch.inference_mode()
def _seconds(products: Sequence[Callable[[Tensor], Tensor]], inputs: Sequence[Tensor]) -> float:
    """Return the least seconds of a round over all products, their weights read from memory."""
    spent = []
    for _ in range(NUM_ROUNDS + 1):  # the first allocates
        began = time.perf_counter()
        for product, x in zip(products, inputs, strict=True):
            product(x)
        spent.append(time.perf_counter() - began)
    return min(spent[1:])


def _some(layers: Sequence[Linear]) -> list[Linear]:
    """Return every n-th layer, so that their weights are no more than are measured."""
    step = -(-sum(map(_size, layers)) // MAX_WEIGHTS)
    return list(layers[::step])


def _size(layer: Linear) -> int:
    return layer.shape[0] * layer.shape[1]


def _width(layer: Linear) -> int:
    return layer.shape[1] * (2 if isinstance(layer.before, Gate) else 1)


def _key(layers: Sequence[Linear]) -> str:
    shapes = sorted({(*layer.shape, str(layer.dtype), layer.reads_codes) for layer in layers})
    machine = platform.machine(), os.cpu_count(), torch.get_num_threads()
    return repr((shapes, machine, torch.__version__, library.version()))
