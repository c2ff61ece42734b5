"""Pack whole examples into forward passes of a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Protocol, TypeVar


class Packable(Protocol):
    """Anything with an id and a number of tokens."""

    @property
    def id(self) -> str:
        """Return the id."""

    def __len__(self) -> int: ...


P = TypeVar("P", bound=Packable)


@dataclass(frozen=True, slots=True)
class Packing(Generic[P]):
    """Packs of examples, and the ids of examples that are longer than a pack."""

    packs: list[list[P]]
    too_long: list[str]


def pack(examples: Iterable[P], max_tokens: int, seed: int = 0) -> Packing[P]:
    """Shuffle examples by a seed, and fill packs of at most ``max_tokens`` in turn."""
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
