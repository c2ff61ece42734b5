"""KV memory: one pool of pages, each request in one run of consecutive pages.

A run is consecutive so that attention reads a view. It grows in place where the next pages are
free, else it moves, else the pool is compacted: nothing fails by fragmentation. Threads are
interleaved inside a run, slot by slot. A run can be *kept* when its request has ended: its pages
count as free, and can be copied until the space is needed; the one used longest ago goes first.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

# Legend: L layers, G key/value heads, S slots of the whole pool, K slots of one run, D head size.


class LayerShape(NamedTuple):
    """Shape of one layer's keys and values for one token."""

    num_heads: int
    key_size: int
    value_size: int


class LayerViews(NamedTuple):
    """Keys and values of one run, for each layer [1, G, K, D]."""

    keys: list[Tensor]
    values: list[Tensor]


@dataclass(slots=True, eq=False)
class Run:
    """Consecutive pages that one request owns; the pool may move them."""

    first_page: int
    num_pages: int

    @property
    def end_page(self) -> int:
        return self.first_page + self.num_pages


class Pool:
    """Keys and values of many requests, ``num_slots`` tokens rounded up to whole pages."""

    def __init__(
        self, shapes: Sequence[LayerShape], num_slots: int, *, dtype: torch.dtype,
        device: torch.device, page_size: int = 16,
    ) -> None:  # fmt: skip
        self.page_size = page_size
        self.num_pages = -(-num_slots // page_size)
        self.runs: list[Run] = []  # in order of their pages
        self.kept: list[Run] = []  # the one that was used longest ago first
        self.on_evict: Callable[[Run], None] = lambda run: None  # a kept run loses its pages

        # Layers of equal shape lie in one tensor [L, 1, G, S, D].
        sizes = [(shape.num_heads, shape.key_size) for shape in shapes]
        self._keys = _layers(sizes, self.num_slots, dtype, device)
        sizes = [(shape.num_heads, shape.value_size) for shape in shapes]
        self._values = _layers(sizes, self.num_slots, dtype, device)
        self.keys = [layer[0] for group in self._keys for layer in group]
        """For each layer [G, S, D], rotated as the model rotates them."""
        self.values = [layer[0] for group in self._values for layer in group]

    def close(self) -> None:
        self.num_pages = 0
        for memory in (self.keys, self.values, self._keys, self._values):
            memory.clear()

    @property
    def num_slots(self) -> int:
        return self.num_pages * self.page_size

    @property
    def num_bytes(self) -> int:
        return sum(memory.nbytes for memory in self._memories)

    @property
    def num_free_pages(self) -> int:
        return self.num_pages - sum(run.num_pages for run in self.runs)

    def pages_for(self, num_slots: int) -> int:
        return max(1, -(-num_slots // self.page_size))

    def can_allocate(self, num_slots: int) -> bool:
        return self.pages_for(num_slots) <= self.num_free_pages

    def allocate(self, num_slots: int) -> Run:
        num_pages = self.pages_for(num_slots)
        assert num_pages <= self.num_free_pages
        while (first := self._find_hole(num_pages)) is None and self.kept:
            self._evict()
        if first is None:
            self.compact()  # enough pages are free, but not in a row
            first = self.runs[-1].end_page
        run = Run(first, num_pages)
        self._insert(run)
        return run

    def can_grow(self, run: Run, num_slots: int) -> bool:
        num_more = self.pages_for(num_slots) - run.num_pages
        return num_more <= 0 or num_more <= self.num_free_pages  # free pages are counted

    def grow(self, run: Run, num_slots: int) -> None:
        """Let a run hold this many tokens; it may move. Requires ``can_grow``."""
        num_pages = self.pages_for(num_slots)
        if num_pages <= run.num_pages:
            return
        assert self.can_grow(run, num_slots)
        while (hole := self._page_for(run, num_pages)) is None and self.kept:
            self._evict()
        if hole is None:
            self._make_last(run)
        elif hole != run.first_page:
            self._copy([(run.first_page, hole, run.num_pages)], *self._memories)
            run.first_page = hole
            self.runs.remove(run)
            self._insert(run)
        run.num_pages = num_pages

    def free(self, run: Run) -> None:
        self.runs.remove(run)

    def keep(self, run: Run, num_pages: int) -> None:
        """Take a run's pages back, but remember what its first pages hold while they are free."""
        self.free(run)
        run.num_pages = num_pages
        self.kept.append(run)

    def touch(self, run: Run) -> None:
        """Note that a run was used: if it is kept, all others that are kept go before it."""
        if run in self.kept:
            self.kept.remove(run)
            self.kept.append(run)

    def copy_pages(self, source: Run, target: Run, num_pages: int) -> None:
        self._copy([(source.first_page, target.first_page, num_pages)], *self._memories)

    def move_slots(self, run: Run, moves: Sequence[tuple[int, int]]) -> None:
        """Copy entries of a run to other slots of it: pairs of slots, before and after."""
        before, after = self.start(run) + torch.tensor(moves, device=self.keys[0].device).T
        for memory in self._memories:
            memory.index_copy_(1, after, memory.index_select(1, before))

    def _evict(self) -> None:
        self.on_evict(self.kept.pop(0))

    def _page_for(self, run: Run, num_pages: int) -> int | None:
        ends = [other.first_page for other in self._taken() if other.first_page > run.first_page]
        if run.first_page + num_pages <= min(ends, default=self.num_pages):
            return run.first_page
        return self._find_hole(num_pages)

    def compact(self) -> None:
        """Slide all runs to the front, so that all free pages lie together behind them."""
        self._copy(self._slide(), *self._memories)

    def _slide(self) -> list[tuple[int, int, int]]:
        """Give all runs the first pages; return what is to be copied."""
        while self.kept:
            self._evict()
        page, moves = 0, []
        for run in self.runs:
            if run.first_page != page:
                moves.append((run.first_page, page, run.num_pages))
            run.first_page = page
            page = run.end_page
        return moves

    def slots(self, parts: Iterable[tuple[Run, int, int]]) -> Tensor:
        """Return the pool's slots, int64 [N], that hold slots [first, stop) of runs."""
        spans = [(self.start(run), first, stop) for run, first, stop in parts]
        pool_slots = [start + slot for start, first, stop in spans for slot in range(first, stop)]
        return torch.tensor(pool_slots, dtype=torch.int64, device=self.keys[0].device)

    def write(self, layer: int, slots_N: Tensor, k_GND: Tensor, v_GND: Tensor) -> None:
        self.keys[layer].index_copy_(1, slots_N, k_GND)
        self.values[layer].index_copy_(1, slots_N, v_GND)

    def start(self, run: Run) -> int:
        return run.first_page * self.page_size

    def layer_views(self, run: Run, first: int, stop: int) -> LayerViews:
        """Return every layer's keys and values of a run's slots [first, stop), without copying."""
        start = self.start(run) + first

        def views(memory: list[Tensor]) -> list[Tensor]:
            parts = (part.narrow(3, start, stop - first) for part in memory)
            return [view for part in parts for view in part.unbind()]

        return LayerViews(views(self._keys), views(self._values))

    def _find_hole(self, num_pages: int) -> int | None:
        page = 0
        for run in self._taken():
            if run.first_page - page >= num_pages:
                return page
            page = run.end_page
        return page if self.num_pages - page >= num_pages else None

    def _taken(self) -> list[Run]:
        return sorted((*self.runs, *self.kept), key=lambda run: run.first_page)

    def _insert(self, run: Run) -> None:
        self.runs.append(run)
        self.runs.sort(key=lambda other: other.first_page)

    def _make_last(self, run: Run) -> None:
        self.runs.remove(run)
        first, moves = run.first_page, self._slide()
        run.first_page = self.runs[-1].end_page if self.runs else 0
        self.runs.append(run)
        old, new = self._span(first, run.num_pages), self._span(run.first_page, run.num_pages)
        for memory in self._memories:  # one layer after the other: a copy of all has gigabytes
            saved = memory[:, old].clone()
            self._copy(moves, memory)
            memory[:, new] = saved

    def _copy(self, moves: Iterable[tuple[int, int, int]], *memories: Tensor) -> None:
        for memory, (before, after, num_pages) in product(memories, moves):
            old, new = self._span(before, num_pages), self._span(after, num_pages)
            memory[:, new] = memory[:, old].clone()  # the pages may overlap

    def _span(self, page: int, num_pages: int) -> slice:
        return slice(page * self.page_size, (page + num_pages) * self.page_size)

    @property
    def _memories(self) -> list[Tensor]:
        return [*self.keys, *self.values]


def _layers(
    sizes: Sequence[tuple[int, int]], num_slots: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Return the memory of layers by their heads and sizes: one tensor if these are equal."""
    groups = [sizes] if len(set(sizes)) == 1 else [[size] for size in sizes]
    return [
        _zeros((len(group), 1, group[0][0], num_slots, group[0][1]), dtype, device)
        for group in groups
    ]


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu" or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros would write all of it at once.
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
