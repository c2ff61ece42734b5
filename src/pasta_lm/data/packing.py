"""Whole examples in packs of a bounded number of tokens: nothing is cut, nothing leaks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Protocol, TypeVar


class Packable(Protocol):
    """What has a name and a number of tokens."""

    @property
    def id(self) -> str:
        """Return its name."""
        ...

    def __len__(self) -> int:
        """Return how many tokens it has."""
        ...


P = TypeVar("P", bound=Packable)


@dataclass(frozen=True, slots=True)
class Packing(Generic[P]):
    """Examples in packs, and those that fit into none.

    Attributes:
        packs: What one optimiser step or a part of it learns from.
        too_long: Ids of examples longer than a pack.
    """

    packs: list[list[P]]
    too_long: list[str]


def pack(examples: Iterable[P], max_tokens: int, seed: int = 0) -> Packing[P]:
    """Shuffle examples and fill packs one after the other.

    Args:
        examples: What is to be learned.
        max_tokens: The most that a pack may hold.
        seed: Of the order; the same seed gives the same packs.
    """
    order: Sequence[P] = list(examples)
    order = Random(seed).sample(order, len(order))
    packs: list[list[P]] = []
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
