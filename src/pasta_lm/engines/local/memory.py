"""The size of the cache: from bytes, or a share of what the device has free, to entries."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import torch

from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.local.pool import LayerShape
from pasta_lm.errors import UsageError

UNITS = {"": 1} | {
    f"{prefix}{ending}": base**power
    for ending, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate(("", "K", "M", "G", "T"))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%|[KMGT]?i?B|)\s*", re.IGNORECASE)


def pool_slots(memory: str, loaded: LoadedModel) -> int:
    """Return how many cache entries of a loaded model fit a budget such as '2GiB' or '40%'.

    A share is one of the memory that the device has free now, the model's weights in it already.

    Raises:
        UsageError: no budget, or too small for a single entry.
    """
    free = free_bytes(loaded.device)
    per_entry = entry_bytes(loaded.layer_shapes, loaded.dtype)
    num_slots = budget_bytes(memory, free) // per_entry
    if num_slots < 1:
        raise UsageError(f"a cache of {memory} holds nothing: an entry has {per_entry} bytes")
    return num_slots


def budget_bytes(memory: str, free: int) -> int:
    """Return the bytes of a budget; a percentage is one of the free bytes.

    Raises:
        UsageError: not a number with a unit, or more than 100 %.
    """
    found = _SIZE.fullmatch(memory)
    unit = "" if found is None else found[2]
    if found is None or (unit == "%" and float(found[1]) > 100):
        raise UsageError(
            f"a cache of {memory!r} has no size", hint="such as 800MB, 2GiB or 40% of what is free"
        )
    if unit == "%":
        return int(free * float(found[1]) / 100)
    sizes = {name.lower(): size for name, size in UNITS.items()}
    return int(float(found[1]) * sizes[unit.lower()])


def entry_bytes(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """Return the bytes of keys and values of one entry in all layers."""
    return sum(one.num_heads * (one.key_size + one.value_size) for one in shapes) * dtype.itemsize


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
