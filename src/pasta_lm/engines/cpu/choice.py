"""Choose by measurement how compiled products run fastest, once for each machine and model.

Two numbers are measured: of how many threads, because memory feeds only so many of them, and up to
how many rows compiled products are faster than torch's own.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.kernels import Gate, Linear
from pasta_lm.models.cache_folder import remembered

FILE = "compiled-choice.json"  # in the cache folder
CANDIDATES = (64, 32, 16, 12, 8, 6, 4, 2, 1)
MIN_WEIGHTS = 20_000_000  # fewer stay in the processor's caches: measuring would mislead
MAX_WEIGHTS = 60_000_000  # of more, some layers are measured
NUM_ROUNDS = 3
CLEAR_GAIN = 0.97  # more threads must save so much: others can use them


def choose(layers: Sequence[Linear]) -> None:
    """Let compiled products use the threads, and take the rows, with which they are fastest.

    The threads are those of all compiled functions of the process: the model loaded last decides.
    """
    compiled = [layer for layer in layers if layer.compiled is not None]
    if sum(map(_size, compiled)) < MIN_WEIGHTS:
        return
    measured = _some(compiled)
    found = remembered(FILE, _key(measured), lambda: _measure(measured))
    library.use_threads(found["threads"])
    for layer in compiled:
        layer.compiled_rows = found["rows"]


def _measure(layers: Sequence[Linear]) -> dict[str, int]:
    """Return both numbers; with the chosen threads the rows are measured."""
    threads = _threads(layers)
    library.use_threads(threads)
    return {"threads": threads, "rows": _rows(layers)}


def _threads(layers: Sequence[Linear]) -> int:
    """Return with how many threads products of one row take the least time."""
    most = torch.get_num_threads()
    candidates = [most >> shift for shift in range(most.bit_length())]
    if len(candidates) == 1:
        return most
    inputs, own = _inputs(layers, 1), _compiled(layers)
    spent = {}
    for threads in candidates:
        library.use_threads(threads)
        spent[threads] = _seconds(own, inputs)
    enough = min(spent.values()) / CLEAR_GAIN
    return min(threads for threads, seconds in spent.items() if seconds <= enough)


def _rows(layers: Sequence[Linear]) -> int:
    """Return the largest candidate at which compiled products take less time, or 0."""
    own, others = _compiled(layers), [layer.uncompiled for layer in layers]
    for rows in CANDIDATES:
        inputs = _inputs(layers, rows)
        if _seconds(own, inputs) < _seconds(others, inputs):
            return rows
    return 0


def _inputs(layers: Sequence[Linear], rows: int) -> list[Tensor]:
    return [torch.ones(1, rows, _width(layer), dtype=layer.dtype) for layer in layers]


def _compiled(layers: Sequence[Linear]) -> list[Callable[[Tensor], Tensor]]:
    products = [layer.compiled for layer in layers if layer.compiled is not None]
    return [partial(product, residual=None) for product in products]


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
