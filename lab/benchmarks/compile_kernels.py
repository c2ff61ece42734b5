"""Compile every Triton kernel for GPUs that are not there, and hold what each needs against them.

    PYTHONPATH=src python lab/benchmarks/compile_kernels.py [--capability 80,89]

Constants, types and alignments are those of a real pass. Exits with 1 if a kernel does not compile,
needs more shared memory than the card has, or spills more than 64 bytes a thread. Does nothing
while ``compiled_kernels.txt`` has the hash of the sources and Triton's version.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TRITON_INTERPRET"] = "0"  # the interpreter would run the kernels instead

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from pasta_lm.engines.gpu import attention, batch, kernels
from pasta_lm.engines.gpu.batch import PagedBatch, RequestSize, bucket_of
from pasta_lm.engines.passes.attention import LayerCall

PAGE, MAX_SPILLED = 16, 64
SHARED = {80: 166_912, 89: 101_376, 90: 232_448, 120: 101_376}
"""Bytes of shared memory that an instance may have, by compute capability (CUDA's guide, 16)."""
ALL, PASSED = ",".join(map(str, SHARED)), Path(__file__).with_name("compiled_kernels.txt")
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Heads(NamedTuple):
    """The attention of a model."""

    query: int
    key: int
    size: int
    value_size: int
    softcap: float | None = None
    window: int | None = None
    has_sinks: bool = False


MODELS = {
    "smollm2-135m": Heads(9, 3, 64, 64),
    "qwen2.5-7b": Heads(28, 4, 128, 128),
    "qwen3-8b": Heads(32, 8, 128, 128),
    "phi-2": Heads(32, 32, 80, 80),
    "gemma-2-9b": Heads(16, 8, 256, 256, softcap=50.0, window=4096),
    "heads of 512": Heads(16, 2, 512, 512),  # full layers of Gemma 4
    "gpt-oss-20b": Heads(64, 8, 64, 64, window=128, has_sinks=True),
    "deepseek-v3": Heads(128, 128, 192, 128),
}
PASSES = {  # of requests with so many rows, pages and owners each
    "1 row": [RequestSize(1, 16, 4)],
    "8 rows": [RequestSize(8, 128, 16)],
    "16 requests": [RequestSize(1, 64, 4)] * 16,
}


class Absent:
    """A driver for a GPU that is not there."""

    def __init__(self, capability: int) -> None:
        target = GPUTarget("cuda", capability, 32)
        self.get_current_target = lambda: target
        self.get_current_device = lambda: capability  # Triton keeps what it compiled by device
        self.get_current_stream = lambda device: 0


def compiled(launch: Callable[[], object]) -> list[dict[str, Any]]:
    """Return name, bytes of shared memory and of spilled registers of each kernel launched."""
    rows, real = list[dict[str, Any]](), jit.JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = real(self, *args, grid=grid, warmup=True, **kwargs)
        shared = int(kernel.metadata.shared)
        rows.append({"kernel": self.fn.__name__, "shared": shared, "spilled": spilled(kernel)})
        return kernel

    jit.JITFunction.run = run
    try:
        launch()
    finally:
        jit.JITFunction.run = real
    return rows


def spilled(kernel: Any) -> int:
    """Return the bytes of a thread's stack, which has the registers that did not fit."""
    with tempfile.NamedTemporaryFile(suffix=".cubin", buffering=0) as file:
        file.write(kernel.asm["cubin"])
        command = [str(TOOL), "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(map(int, re.findall(r"\bSTACK:(\d+)", usage)), default=0)


def layer(heads: Heads, requests: list[RequestSize], dtype: torch.dtype) -> None:
    """Launch the kernels of one layer in one pass; no memory is touched."""
    bucket = bucket_of(requests, heads.query // heads.key)
    numbers = torch.empty(PagedBatch.num_numbers(bucket), dtype=torch.int32)
    run, rows, slots = PagedBatch.of_numbers(bucket, PAGE, numbers), bucket.num_rows, 65_536
    entries = torch.empty(2, slots, dtype=torch.int32)
    pool = [torch.empty(heads.key, slots, size, dtype=dtype) for size in heads[2:4]]
    counts = (heads.query, heads.size), (heads.key, heads.size), (heads.key, heads.value_size)
    new = [torch.empty(rows, *count, dtype=dtype).transpose(0, 1) for count in counts]
    sinks = torch.empty(heads.query, dtype=dtype) if heads.has_sinks else None
    call = LayerCall(0, None, heads.window, heads.softcap, sinks)
    kernels.place[(rows,)](run.rows, entries, rows, slots)
    attention.attend_split(call, *new, attention.LayerMemory(*pool, entries, run))


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--capability", default=ALL)
    args = parser.parse_args()
    files = [Path(str(module.__file__)) for module in (attention, batch, kernels)]
    key = f"{sha256(b''.join(map(Path.read_bytes, files))).hexdigest()} {triton.__version__}"
    passed = PASSED.read_text("utf-8").splitlines() if PASSED.exists() else []
    if key in passed:
        return 0
    num_bad = num_kernels = 0
    for capability in map(int, args.capability.split(",")):
        driver.set_active(Absent(capability))
        for model, passes, dtype in product(MODELS, PASSES, (torch.bfloat16, torch.float32)):
            for row in compiled(partial(layer, MODELS[model], PASSES[passes], dtype)):
                fits = row["shared"] <= SHARED[capability] and row["spilled"] <= MAX_SPILLED
                num_kernels, num_bad = num_kernels + 1, num_bad + (not fits)
                name = f"sm_{capability}, {model}, {passes}, {dtype}"
                print("" if fits else f"{name}: {row}\n", end="", flush=True)
    print(f"Triton {triton.__version__}: {num_kernels} launches compiled, {num_bad} do not fit")
    if not num_bad and args.capability == ALL:
        same = [line for line in passed if line.split()[0] == key.split()[0]]
        PASSED.write_text("".join(f"{line}\n" for line in [*same, key]), "utf-8")
    return int(num_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
