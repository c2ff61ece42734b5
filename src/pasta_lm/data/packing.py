"""Whole examples in packs of a bounded number of tokens: nothing is cut, nothing leaks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from pasta_lm.data.encode import EncodedExample


@dataclass(frozen=True, slots=True)
class Packing:
    """Examples in packs, and those that fit into none.

    Attributes:
        packs: What one optimiser step or a part of it learns from.
        too_long: Ids of examples longer than a pack.
    """

    packs: list[list[EncodedExample]]
    too_long: list[str]


def pack(examples: Iterable[EncodedExample], max_tokens: int, seed: int = 0) -> Packing:
    """Shuffle examples and fill packs one after the other.

    Args:
        examples: What is to be learned.
        max_tokens: The most that a pack may hold.
        seed: Of the order; the same seed gives the same packs.
    """
    order: Sequence[EncodedExample] = list(examples)
    order = Random(seed).sample(order, len(order))
    packs: list[list[EncodedExample]] = []
    too_long: list[str] = []
    room = 0
    for example in order:
        if len(example) > max_tokens:
            too_long.append(example.id)
            continue
        if len(example) > room:
            packs.append([])
            room = max_tokens
        packs[-1].append(example)
        room -= len(example)
    return Packing(packs, too_long)
