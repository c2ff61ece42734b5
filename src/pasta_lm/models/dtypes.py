"""The names of dtypes: those of other projects stand for ours."""

from __future__ import annotations

DTYPE_NAMES = {
    "auto": None,
    "bf16": "bfloat16",
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "half": "float16",
}


def dtype_name(name: str | None) -> str | None:
    """Return the name of a dtype as this package has it; None: the default of the device."""
    return name and DTYPE_NAMES.get(name, name)
