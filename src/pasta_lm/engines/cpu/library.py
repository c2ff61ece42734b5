"""Functions compiled from C by the machine's own compiler, and memory of large pages for them.

Without a compiler there are none. The first use on a machine takes some seconds, for the compiler.
The library is kept beside the other caches, under a name made of its sources, the processor and
the compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import mmap
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pasta_lm.machine import IdleCores, cache_folder, cpu_flags, new_file

logger = logging.getLogger(__name__)

SOURCES = tuple(Path(__file__).with_name(name) for name in ("linear.c", "attention.c", "vectors.h"))
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-shared", "-fPIC", "-fopenmp", "-fno-strict-aliasing")
STEP = 32  # sizes that are summed over are multiples of it
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
MAX_ROWS = 32  # for a compiled product where torch's is faster for more: those of a pass
BEFORE = {None: 0, "rms_norm": 1, "silu": 2, "gelu": 3}
PAGE = 2 << 20
BLOCK = 32 * PAGE  # bytes that are taken from the system at once
ALIGNMENT = 64  # bytes of a cache line
NUM_THREADS = "OMP_NUM_THREADS"  # set by a user or --threads: that many, whatever else runs
idle_cores = IdleCores()
_given_to_torch: ContextVar[int | None] = ContextVar("_given_to_torch", default=None)

# Legend: R rows, I inputs, O outputs.


@cache
def functions() -> ctypes.CDLL | None:
    """Return the compiled functions, or None without a C compiler that makes them."""
    try:
        file = _file()
        if not file.exists():
            _compile(file)
        compiled = ctypes.CDLL(str(file))
    except (OSError, subprocess.SubprocessError) as exc:
        logger.info("no compiled functions: %s", exc)
        return None
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    compiled.linear.argtypes = [pointer, pointer, size, pointer, pointer, size, number]
    compiled.attend.argtypes = [pointer]
    return compiled


def num_threads() -> int:
    """Return the threads of a compiled function: those of torch, at most the idle cores."""
    most = _given_to_torch.get() or torch.get_num_threads()
    return most if os.environ.get(NUM_THREADS) else min(most, idle_cores())


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Run torch's own operations on one thread; compiled functions keep theirs.

    Operations on a few rows gain nothing by a second thread, and wait for it where another process
    has its core: with one core taken, ``builtin`` is three to five times faster this way.
    """
    before = torch.get_num_threads()
    token = _given_to_torch.set(before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _given_to_torch.reset(token)


def _compiler() -> str:
    names = (os.environ.get("CC"), *COMPILERS)
    path = next((path for name in names if name and (path := shutil.which(name))), None)
    if path is None:
        raise FileNotFoundError("no C compiler (cc, gcc or clang) on the path")
    return path


def _file() -> Path:
    facts = (_compiler(), *FLAGS, platform.machine(), platform.processor(), *sorted(cpu_flags()))
    content = b"".join(map(Path.read_bytes, SOURCES)) + repr(facts).encode()
    return cache_folder() / f"compiled-{hashlib.sha256(content).hexdigest()[:16]}.so"


def _compile(file: Path) -> None:
    tune = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    files = [str(source) for source in SOURCES if source.suffix == ".c"]
    with new_file(file) as made:
        command = [_compiler(), *FLAGS, tune, *files, "-o", str(made), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class _Linear(ctypes.Structure):
    """The structure ``Linear`` of the source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "bias", "norm_weight")),
        *((name, ctypes.c_int64) for name in ("num_inputs", "num_outputs")),
        *((name, ctypes.c_int32) for name in ("weight_type", "type", "before")),
        ("eps", ctypes.c_float),
    ]


class CompiledLinear:
    """A product of a few rows with a contiguous weight of ``Linear``, and what stands before it."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, scales: Tensor | None, dtype: torch.dtype
    ) -> None:
        floats = [None if x is None else x.detach().float() for x in (scales, bias)]
        self._kept: list[Tensor | None] = [weight, *floats]  # the structure has their addresses
        self._num_outputs, inputs = weight.shape
        self._layout = _Linear(
            weight=weight.data_ptr(), scales=address(floats[0]), bias=address(floats[1]),
            num_inputs=inputs, num_outputs=len(weight),
            weight_type=TYPES[weight.dtype], type=TYPES[dtype],
        )  # fmt: skip
        self._dtype = dtype
        self._run = functions().linear  # type: ignore[union-attr]
        self._reference = ctypes.byref(self._layout)

    def put_before(self, name: str, eps: float = 0.0, norm_weight: Tensor | None = None) -> None:
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
            num_rows, num_threads(),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"no memory for {num_rows} rows of a product")
        return out


def fits(weight: Tensor) -> bool:
    """Return whether there are compiled products and they take a weight [O, I]."""
    is_right = weight.dtype in TYPES and weight.device.type == "cpu"
    return is_right and weight.shape[1] % STEP == 0 and functions() is not None


class HugePages:
    """Copies of tensors side by side in large pages, in the order in which they are made.

    Weights in pages of 2 MiB are read up to a fifth faster than in pages of 4 KiB: the processor
    looks up fewer addresses. Linux gives them on request; elsewhere nothing is copied.
    """

    def __init__(self) -> None:
        self._block: mmap.mmap | None = None
        self._used = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a contiguous copy in large pages, or the tensor itself if there are none."""
        if not hasattr(mmap, "MADV_HUGEPAGE") or tensor.device.type != "cpu" or not tensor.numel():
            return tensor
        with suppress(AttributeError):  # glibc keeps what was freed, weights too
            ctypes.CDLL(None).malloc_trim(0)
        num_bytes, count = tensor.numel() * tensor.element_size(), tensor.numel()
        if self._block is None or self._used + num_bytes > len(self._block):
            size = -(-max(num_bytes, BLOCK) // PAGE) * PAGE + PAGE
            self._block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # a kernel without them
                self._block.madvise(mmap.MADV_HUGEPAGE)
            first = torch.frombuffer(self._block, dtype=torch.uint8, count=1).data_ptr()
            self._used = -first % PAGE  # where its first large page begins
        copy = torch.frombuffer(self._block, dtype=tensor.dtype, count=count, offset=self._used)
        self._used += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return copy.view(tensor.shape).copy_(tensor)
