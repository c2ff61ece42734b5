"""The size of the cache: from bytes, or a share of the device's free memory, to entries."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import torch

from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.pool import LayerShape
from pasta_lm.errors import UsageError

_UNITS = {"": 1} | {
    f"{prefix}{ending}": base**power
    for ending, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate(("", "k", "m", "g", "t"))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%|[KMGT]?i?B|)\s*", re.IGNORECASE)


def pool_slots(memory: str, loaded: LoadedModel) -> int:
    """Return how many cache entries of a loaded model fit a budget such as '2GiB' or '40%'.

    A share is one of the memory that the device has free beside the model's weights.
    """
    free = free_bytes(loaded.device)
    per_entry = entry_bytes(loaded.layer_shapes, loaded.dtype)
    num_slots = budget_bytes(memory, free) // per_entry
    if num_slots < 1:
        raise UsageError(f"a cache of {memory} holds nothing: an entry has {per_entry} bytes")
    return num_slots


def budget_bytes(memory: str, free: int) -> int:
    """Return the bytes of a budget; a percentage is one of the free bytes."""
    size = _SIZE.fullmatch(memory)
    if size is None or (size[2] == "%" and float(size[1]) > 100):
        raise UsageError(
            f"a cache of {memory!r} has no size", hint="such as 800MB, 2GiB or 40% of what is free"
        )
    if size[2] == "%":
        return int(free * float(size[1]) / 100)
    return int(float(size[1]) * _UNITS[size[2].lower()])


def entry_bytes(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """Return the bytes of keys and values of one entry in all layers."""
    sizes = (shape.num_heads * (shape.key_size + shape.value_size) for shape in shapes)
    return sum(sizes) * dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """Return the memory that a device has free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            known = dict(line.split(":", 1) for line in lines)
        return int(known["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux: half of all memory is a careful guess
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
