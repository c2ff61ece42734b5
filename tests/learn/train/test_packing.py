"""Packs hold whole examples, each once, within the bound."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.learn.data.encode import EncodedExample
from pasta_lm.learn.train.sources import fill_packs

MOST = 12
lengths = st.lists(st.integers(1, MOST + 3), max_size=30)
seeds = st.integers(0, 5)


def example(number: int, length: int) -> EncodedExample:
    """Return an example of so many tokens; packing reads nothing else of it."""
    tokens = array("i", range(length))
    return EncodedExample(str(number), tokens, tokens, tokens, tokens, tokens, None, 1)


def examples(of_lengths: list[int]) -> list[EncodedExample]:
    return [example(number, length) for number, length in enumerate(of_lengths)]


@given(lengths, seeds)
def test_every_example_is_whole_in_one_pack_or_named_as_too_long(
    of_lengths: list[int], seed: int
) -> None:
    given_ones = examples(of_lengths)
    packing = fill_packs(given_ones, MOST, seed)
    packed = [e for group in packing.packs for e in group]
    by_id = {e.id: e for e in given_ones}
    assert all(e is by_id[e.id] for e in packed)
    assert sorted([*(e.id for e in packed), *packing.too_long]) == sorted(by_id)
    assert set(packing.too_long) == {e.id for e in given_ones if len(e) > MOST}


@given(lengths, seeds)
def test_packs_are_never_empty_too_long_or_closed_too_early(
    of_lengths: list[int], seed: int
) -> None:
    packs = fill_packs(examples(of_lengths), MOST, seed).packs
    sizes = [sum(map(len, group)) for group in packs]
    assert all(0 < size <= MOST for size in sizes)
    for size, following in zip(sizes, packs[1:], strict=False):
        assert size + len(following[0]) > MOST


@given(lengths, seeds)
def test_the_same_seed_gives_the_same_packs(of_lengths: list[int], seed: int) -> None:
    once, again = (fill_packs(iter(examples(of_lengths)), MOST, seed) for _ in range(2))
    assert [[e.id for e in group] for group in once.packs] == [
        [e.id for e in group] for group in again.packs
    ]
    assert once.too_long == again.too_long


def order(seed: int) -> list[str]:
    return [e.id for group in fill_packs(examples([1] * 40), MOST, seed).packs for e in group]


def test_the_seed_decides_the_order_of_examples() -> None:
    given_order = [str(number) for number in range(40)]
    orders = [given_order, *(order(seed) for seed in range(3))]
    assert all(sorted(one) == sorted(given_order) for one in orders)
    assert len({tuple(one) for one in orders}) == len(orders)


@pytest.mark.parametrize(
    ("of_lengths", "sizes"),
    [
        ([], []),
        ([MOST + 1], []),
        ([MOST], [MOST]),
        ([MOST, MOST], [MOST, MOST]),
        ([MOST // 2] * 2, [MOST]),
        ([MOST // 2 + 1] * 2, [MOST // 2 + 1] * 2),
        ([1] * (MOST + 1), [MOST, 1]),
    ],
)
def test_a_pack_can_be_filled_completely(of_lengths: list[int], sizes: list[int]) -> None:
    packs = fill_packs(examples(of_lengths), MOST).packs
    assert [sum(map(len, group)) for group in packs] == sizes
