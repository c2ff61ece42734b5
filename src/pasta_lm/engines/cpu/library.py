"""Functions compiled from C by the machine's own compiler; without one there are none.

The first use on a machine takes some seconds, for the compiler. The library is kept beside the
other caches, under a name made of its sources, the processor and the compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pasta_lm.models.cache_folder import cache_folder

logger = logging.getLogger(__name__)

SOURCES = tuple(Path(__file__).with_name(name) for name in ("linear.c", "attention.c", "vectors.h"))
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-shared", "-fPIC", "-fopenmp", "-fno-strict-aliasing")
STEP = 32  # sizes that are summed over are multiples of it
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
_most_threads: list[int] = []  # at most one number


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


def use_threads(most: int) -> None:
    """Let compiled functions of this process use at most so many threads."""
    _most_threads[:] = [most]


def num_threads() -> int:
    """Return the threads of a compiled function: those of torch, or fewer if they are enough."""
    return min([torch.get_num_threads(), *_most_threads])


def version() -> str:
    """Return a name that changes with the functions; 'none' without a C compiler."""
    return "none" if functions() is None else _file().stem


def _compiler() -> str:
    for name in (os.environ.get("CC"), *COMPILERS):
        path = shutil.which(name) if name else None
        if path is not None:
            return path
    raise FileNotFoundError("no C compiler (cc, gcc or clang) on the path")


def _file() -> Path:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    facts = (_compiler(), *FLAGS, platform.machine(), platform.processor(), flags)
    name = hashlib.sha256(
        b"".join(map(Path.read_bytes, SOURCES)) + repr(facts).encode()
    ).hexdigest()[:16]
    return cache_folder() / f"compiled-{name}.so"


def _compile(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")
    tune = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    files = [str(source) for source in SOURCES if source.suffix == ".c"]
    command = [_compiler(), *FLAGS, tune, *files, "-o", str(part), "-lm"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    part.replace(file)


def address(tensor: Tensor | None) -> int | None:
    """Return where a tensor's first element lies, or None for a null pointer."""
    return None if tensor is None else tensor.data_ptr()
