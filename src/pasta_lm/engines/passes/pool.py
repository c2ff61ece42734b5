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
from typing import NamedTuple

import torch
from torch import Tensor

# Legend: L layers, G key/value heads, S slots of the whole pool, K slots of one run, D head size.


class LayerShape(NamedTuple):
    """Shape of one layer's keys and values for one token."""

    num_heads: int
    key_size: int
    value_size: int


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

        self.keys, self.values = (
            [_zeros((shape[0], self.num_slots, shape[side]), dtype, device) for shape in shapes]
            for side in (1, 2)
        )
        """For each layer [G, S, D], keys rotated as the model rotates them."""

    def close(self) -> None:
        self.num_pages = 0
        self.keys.clear()
        self.values.clear()

    @property
    def num_slots(self) -> int:
        return self.num_pages * self.page_size

    @property
    def num_bytes(self) -> int:
        return sum(memory.nbytes for memory in (*self.keys, *self.values))

    @property
    def num_free_pages(self) -> int:
        return self.num_pages - sum(run.num_pages for run in self.runs)

    def pages_for(self, num_slots: int) -> int:
        return max(1, -(-num_slots // self.page_size))

    def allocate(self, num_slots: int) -> Run:
        num_pages = self.pages_for(num_slots)
        while (first := self._find_hole(num_pages)) is None and self.kept:
            self.on_evict(self.kept.pop(0))
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
        while (hole := self._page_for(run, num_pages)) is None and self.kept:
            self.on_evict(self.kept.pop(0))
        if hole is None:
            self.compact(last=run)
        elif hole != run.first_page:
            self.copy([(run.first_page, hole, run.num_pages)])
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

    def move_slots(self, run: Run, moves: Sequence[tuple[int, int]]) -> None:
        self._copy_slots(self.start(run) + torch.tensor(moves, device=self.keys[0].device).T)

    def _page_for(self, run: Run, num_pages: int) -> int | None:
        ends = [other.first_page for other in self._taken() if other.first_page > run.first_page]
        if run.first_page + num_pages <= min(ends, default=self.num_pages):
            return run.first_page
        return self._find_hole(num_pages)

    def compact(self, last: Run | None = None) -> None:
        """Slide all runs to the front, ``last`` behind the others, and free pages behind it."""
        while self.kept:
            self.on_evict(self.kept.pop(0))
        self.runs.sort(key=lambda run: (run is last, run.first_page))
        page, moves = 0, []
        for run in self.runs:
            if run.first_page != page:
                moves.append((run.first_page, page, run.num_pages))
            run.first_page = page
            page = run.end_page
        self.copy(moves)

    def write(self, layer: int, slots_N: Tensor, k_GND: Tensor, v_GND: Tensor) -> None:
        self.keys[layer].index_copy_(1, slots_N, k_GND)
        self.values[layer].index_copy_(1, slots_N, v_GND)

    def start(self, run: Run) -> int:
        return run.first_page * self.page_size

    def view(self, layer: int, run: Run, num_entries: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values of a run's first slots, [G, K, D], without copying."""
        span = slice(self.start(run), self.start(run) + num_entries)
        return self.keys[layer][:, span], self.values[layer][:, span]

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

    def copy(self, moves: Iterable[tuple[int, int, int]]) -> None:
        """Copy pages: the first before and after, and their number; they may overlap."""
        pages = [(old + i, new + i) for old, new, num_pages in moves for i in range(num_pages)]
        device = self.keys[0].device
        firsts = torch.tensor(pages, dtype=torch.int64, device=device).view(-1, 2).T
        in_page = torch.arange(self.page_size, device=device)
        self._copy_slots((firsts[..., None] * self.page_size + in_page).flatten(1))

    def _copy_slots(self, slots: Tensor) -> None:
        before, after = slots
        for memory in (*self.keys, *self.values):  # a copy of all has gigabytes
            memory.index_copy_(1, after, memory.index_select(1, before))


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu" or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros would write all of it at once.
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
