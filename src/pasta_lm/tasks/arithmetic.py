"""Sums written out step by step, so that a small model can learn them and a block has work to do.

A number of two digits is added as its tens and then its ones: each step changes few digits, and
a number that was never seen is added by steps that were.
"""

from __future__ import annotations

from collections.abc import Iterable


def added(start: int, value: int) -> str:
    """Return the steps of ``start + value``, each written ``a + b = c``."""
    tens, ones = value // 10 * 10, value % 10
    parts = [part for part in (tens, ones) if part]
    steps = []
    for part in parts or [0]:
        steps.append(f"{start} + {part} = {start + part}")
        start += part
    return ", ".join(steps)


def summed(values: Iterable[int]) -> str:
    """Return the steps that add numbers one after the other, from the first on."""
    first, *others = values
    steps = []
    total = first
    for value in others:
        steps.append(added(total, value))
        total += value
    return ", ".join(steps)
