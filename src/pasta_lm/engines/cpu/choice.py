"""Choose by measurement how compiled products run fastest, once for each machine and model.

Two numbers are measured: the threads, because memory feeds only so many of them, and the largest
number of rows at which compiled products are faster than torch's own.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from math import ceil

import torch

from pasta_lm.engines.cpu import library
from pasta_lm.engines.cpu.kernels import Gate, Linear
from pasta_lm.models.cache_folder import remembered

FILE = "compiled-choice.json"  # in the cache folder
CANDIDATES = (64, 32, 16, 12, 8, 6, 4, 2, 1)
MIN_WEIGHTS = 20_000_000  # fewer stay in the processor's caches: measuring would mislead
MAX_WEIGHTS = 60_000_000  # of more, every n-th layer is measured
NUM_ROUNDS = 3
CLEAR_GAIN = 0.97  # more threads must save so much: others can use them


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
    seconds = {}
    most = torch.get_num_threads()
    for threads in (most >> shift for shift in range(most.bit_length())):
        library.use_threads(threads)
        seconds[threads] = _seconds(layers, 1, is_compiled=True)
    enough = min(seconds.values()) / CLEAR_GAIN
    threads = min(count for count, spent in seconds.items() if spent <= enough)
    library.use_threads(threads)
    is_faster = (
        _seconds(layers, rows, is_compiled=True) < _seconds(layers, rows, is_compiled=False)
        for rows in CANDIDATES
    )
    rows = next((rows for rows, fast in zip(CANDIDATES, is_faster, strict=False) if fast), 0)
    return {"threads": threads, "rows": rows}


@torch.inference_mode()
def _seconds(layers: Sequence[Linear], rows: int, *, is_compiled: bool) -> float:
    """Return the shortest time of a round over all products, their weights read from memory."""
    products = [layer.compiled if is_compiled else layer.uncompiled for layer in layers]
    widths = [layer.shape[1] * (2 if isinstance(layer.before, Gate) else 1) for layer in layers]
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
