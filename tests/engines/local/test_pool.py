from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pasta_lm.engines.passes.pool import LayerShape, Pool, Run

SHAPES = [LayerShape(2, 3, 4), LayerShape(1, 5, 2)]
PAGE = 4
NUM_SLOTS = 10 * PAGE


def pool_of(num_slots: int = NUM_SLOTS) -> Pool:
    cpu = torch.device("cpu")
    return Pool(SHAPES, num_slots, dtype=torch.float32, device=cpu, page_size=PAGE)


def write(pool: Pool, run: Run, slot: int, mark: float) -> None:
    place = torch.tensor([pool.start(run) + slot])
    for layer, shape in enumerate(SHAPES):
        keys = torch.full((shape.num_heads, 1, shape.key_size), mark)
        values = torch.full((shape.num_heads, 1, shape.value_size), -mark)
        pool.write(layer, place, keys, values)


def read(pool: Pool, run: Run, num_slots: int) -> list[float]:
    """Return the marks of a run's first slots; all layers and heads must agree."""
    marks: set[tuple[float, ...]] = set()
    for layer in range(len(SHAPES)):
        keys, values = pool.view(layer, run, num_slots)
        marks |= {tuple(column) for head in keys for column in head.T.tolist()}
        marks |= {tuple(column) for head in -values for column in head.T.tolist()}
    (only,) = marks or {()}
    return list(only)


def check_integrity(pool: Pool) -> None:
    """Assert that no two runs overlap and that all lie inside the pool."""
    page = 0
    assert pool.runs == sorted(pool.runs, key=lambda run: run.first_page), "out of order"
    for run in sorted((*pool.runs, *pool.kept), key=lambda run: run.first_page):
        assert page <= run.first_page, "two runs overlap"
        page = run.end_page
    assert page <= pool.num_pages, "a run lies outside the pool"


@dataclass
class Owned:
    """What a plain list knows of a run."""

    run: Run
    room: int
    marks: list[float] = field(default_factory=list)


class PoolMachine(RuleBasedStateMachine):
    """Compare the pool with plain lists, whatever is asked in whatever order."""

    owned = Bundle("owned")

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of()
        self.all: list[Owned] = []
        self.kept: dict[int, Owned] = {}
        self.pool.on_evict = self.forget
        self.next_mark = 0.0

    def forget(self, run: Run) -> None:
        del self.kept[id(run)]

    def pages(self, num_slots: int) -> int:
        return max(1, -(-num_slots // PAGE))

    @property
    def num_free(self) -> int:
        return NUM_SLOTS // PAGE - sum(self.pages(one.room) for one in self.all)

    @rule(target=owned, num_slots=st.integers(1, NUM_SLOTS))
    def allocate(self, num_slots: int) -> Owned | None:
        fits = self.pages(num_slots) <= self.num_free
        assert self.pool.num_free_pages == self.num_free
        if not fits:
            return None
        one = Owned(self.pool.allocate(num_slots), num_slots)
        self.all.append(one)
        return one

    @rule(one=owned, num_slots=st.integers(1, NUM_SLOTS))
    def grow(self, one: Owned | None, num_slots: int) -> None:
        if one is None:
            return
        fits = self.pages(num_slots) - self.pages(one.room) <= self.num_free
        assert self.pool.can_grow(one.run, num_slots) == fits
        if fits:
            self.pool.grow(one.run, num_slots)
            one.room = max(one.room, num_slots)

    @rule(one=owned, count=st.integers(1, 5))
    def fill(self, one: Owned | None, count: int) -> None:
        for _ in range(count):
            if one is not None and len(one.marks) < one.room:
                self.next_mark += 1
                write(self.pool, one.run, len(one.marks), self.next_mark)
                one.marks.append(self.next_mark)

    @rule(one=consumes(owned))
    def free(self, one: Owned | None) -> None:
        if one is not None:
            self.pool.free(one.run)
            self.all.remove(one)

    @rule(one=consumes(owned))
    def keep(self, one: Owned | None) -> None:
        if one is not None:
            self.pool.keep(one.run, self.pages(len(one.marks)))
            self.all.remove(one)
            self.kept[id(one.run)] = one

    @rule()
    def compact(self) -> None:
        self.pool.compact()

    @invariant()
    def it_is_whole_and_holds_what_was_written(self) -> None:
        check_integrity(self.pool)
        assert self.pool.num_free_pages == self.num_free
        assert len(self.pool.runs) == len(self.all)
        for one in self.all:
            assert one.run.num_pages == self.pages(one.room)
            assert read(self.pool, one.run, len(one.marks)) == one.marks
        assert self.kept.keys() == {id(run) for run in self.pool.kept}
        for one in self.kept.values():
            assert read(self.pool, one.run, len(one.marks)) == one.marks


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestThePoolAgainstPlainLists = PoolMachine.TestCase


def test_capacity_is_rounded_up_to_whole_pages() -> None:
    assert pool_of(1).num_slots == PAGE
    assert pool_of(PAGE + 1).num_slots == 2 * PAGE
    assert (pool_of().pages_for(0), pool_of().pages_for(PAGE), pool_of().pages_for(5)) == (1, 1, 2)


def test_a_run_grows_in_place_when_the_next_pages_are_free() -> None:
    pool = pool_of()
    run = pool.allocate(PAGE)
    pool.grow(run, 10 * PAGE)
    assert (run.first_page, run.num_pages) == (0, 10)
    pool.grow(run, PAGE)
    assert run.num_pages == 10, "it never shrinks"


@pytest.mark.parametrize("shapes", [SHAPES, [LayerShape(2, 3, 4)] * 3, [LayerShape(1, 2, 2)]])
def test_views_share_memory_with_the_pool_whether_layers_have_one_shape_or_several(
    shapes: list[LayerShape],
) -> None:
    pool = Pool(shapes, NUM_SLOTS, dtype=torch.bfloat16, device=torch.device("cpu"), page_size=PAGE)
    pool.allocate(PAGE)
    run = pool.allocate(2 * PAGE)
    for layer, shape in enumerate(shapes):
        keys, values = pool.view(layer, run, 3)
        assert keys.shape == (shape.num_heads, 3, shape.key_size)
        assert values.shape == (shape.num_heads, 3, shape.value_size)
        keys += 1
        values += layer
        assert pool.keys[layer][:, PAGE : PAGE + 3].float().sum() == keys.numel()
        assert pool.values[layer].float().sum() == layer * values.numel()
        assert pool.keys[layer].float().sum() == keys.numel(), "other runs stay as they were"


def test_a_run_moves_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, select, copies = pool_of(), torch.Tensor.index_select, list[weakref.ref[torch.Tensor]]()

    def counted(*args: Any) -> torch.Tensor:
        copies.append(weakref.ref(copy := select(*args)))
        assert sum(each() is not None for each in copies) <= 2, "copies of several layers"
        return copy

    monkeypatch.setattr(torch.Tensor, "index_select", counted)
    first, second, third = (pool.allocate(PAGE) for _ in range(3))
    for run, mark in ((first, 1.0), (third, 3.0)):
        write(pool, run, 0, mark)
    pool.free(second)
    pool.grow(first, 9 * PAGE)  # the other slides to the front, and this one becomes the last
    assert first.first_page == 1
    assert (read(pool, first, 1), read(pool, third, 1)) == ([1.0], [3.0])
    assert len(copies) >= 2 * len(SHAPES)
