"""What this machine has: its devices, the dtype of weights on them, and memory for a cache."""

from __future__ import annotations

import gc
import logging
import os
import re
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

import torch

from pasta_lm.engines.cpu.int8 import INT8
from pasta_lm.errors import UsageError
from pasta_lm.machine import multiplies_bfloat16
from pasta_lm.models.load import DTYPES

AUTO = "auto"
DTYPE_NAMES = (AUTO, *DTYPES, INT8)
warn_once = cache(logging.getLogger(__name__).warning)


def devices() -> list[str]:
    num_threads, num_gpus = torch.get_num_threads(), torch.cuda.device_count()
    gpus = [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(num_gpus)]
    faults = filter(None, [unused_gpu()])
    return [f"cpu ({num_threads} thread{'s' * (num_threads > 1)})", *gpus, *faults]


def unused_gpu(
    gpu: Path = Path("/dev/nvidia0"), driver: Path = Path("/proc/driver/nvidia/version")
) -> str | None:
    """Return the reason for which torch cannot use the GPU; None: it can, or there is none."""
    if torch.cuda.is_available() or not gpu.exists() or "CUDA_VISIBLE_DEVICES" in os.environ:
        return None
    words = driver.read_text("utf-8").split() if driver.exists() else []
    version = next((word for word in words if re.fullmatch(r"\d{3}\.[\d.]+", word)), "unknown")
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    return (
        f"the GPU is not used: its driver is {version}, torch {torch.__version__} is built for "
        f"{cuda}; for an older driver: --index-url https://download.pytorch.org/whl/cu126"
    )


def usable_device(name: str | None) -> torch.device:
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if name is None and (fault := unused_gpu()):
        warn_once(fault)
    try:
        return torch.zeros(1, device=chosen).device  # launches a kernel: has this torch any for it?
    except (RuntimeError, AssertionError) as exc:  # unknown name, no such GPU, torch without CUDA
        reason = str(exc).partition("\n")[0]
        if name is None and chosen != "cpu":
            warn_once(f"the GPU is not used: {reason}")
            return torch.device("cpu")
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        hint = f"this machine has {', '.join(['cpu', *gpus])}"
        raise UsageError(f"device {chosen!r} cannot be used: {reason}", hint=hint) from exc


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: kernels, streams and graphs are of the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def faster_dtype() -> tuple[torch.dtype, str]:
    """Return bfloat16 where this processor multiplies it, else float32; and why."""
    if multiplies_bfloat16():
        return torch.bfloat16, "the processor multiplies bfloat16"
    return torch.float32, "the processor does not multiply bfloat16"


def weights_dtype(name: str | None, device: torch.device) -> torch.dtype | None:
    if name is None or name == AUTO:
        return faster_dtype()[0] if name and device.type == "cpu" else default_dtype(device)
    if name not in DTYPE_NAMES:
        raise UsageError(f"unknown dtype {name!r}", hint=f"one of {', '.join(DTYPE_NAMES)}")
    if name == INT8 and device.type != "cpu":
        raise UsageError(f"{name} weights are read by a CPU only", hint="bfloat16, or device cpu")
    return torch.float32 if name == INT8 else DTYPES[name]


def default_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype of weights on a device; None: as saved."""
    if device.type != "cuda":
        return torch.float32 if device.type == "cpu" else None
    with on_device(device):
        has_it = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_it else torch.float16


# The size of the cache

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%|([KMGT]?)(i?)B|)\s*", re.IGNORECASE)
SHAPES_BYTES = 64 * (25 << 20)  # the driver's, of as many captured passes as are kept
PASS_BYTES = 3 << 29  # for a pass: activations, logits, the workspaces of libraries


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def budget_bytes(memory: str, free: int) -> int:
    """Return the bytes of a budget; a percentage is one of the free bytes."""
    size = _SIZE.fullmatch(memory)
    if size is None or (size[2] == "%" and float(size[1]) > 100):
        raise UsageError(
            f"a cache of {memory!r} has no size", hint="such as 800MB, 2GiB or 40% of what is free"
        )
    if size[2] == "%":
        return int(free * float(size[1]) / 100)
    base, power = 1024 if size[4] else 1000, " kmgt".index((size[3] or " ").lower())
    return int(float(size[1]) * base**power)


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return int(dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux: half of all memory is a careful guess
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
