"""Packs hold whole examples, each once, within the bound."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.learn.data.encode import EncodedExample
from pasta_lm.learn.train.packs import fill_packs

MAX_TOKENS = 12
lengths = st.lists(st.integers(1, MAX_TOKENS + 3), max_size=30)
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
    by_id = {e.id: e for e in examples(of_lengths)}
    packs, too_long = fill_packs(by_id.values(), MAX_TOKENS, seed)
    packed = [e for group in packs for e in group]
    assert all(e is by_id[e.id] for e in packed)
    assert sorted([*(e.id for e in packed), *too_long]) == sorted(by_id)
    assert {*too_long} == {e.id for e in by_id.values() if len(e) > MAX_TOKENS}


@given(lengths, seeds)
def test_packs_are_never_empty_too_long_or_closed_too_early(
    of_lengths: list[int], seed: int
) -> None:
    packs, _ = fill_packs(examples(of_lengths), MAX_TOKENS, seed)
    sizes = [sum(map(len, group)) for group in packs]
    assert all(0 < size <= MAX_TOKENS for size in sizes)
    for size, following in zip(sizes, packs[1:], strict=False):
        assert size + len(following[0]) > MAX_TOKENS


def order(seed: int) -> list[str]:
    return [e.id for group in fill_packs(examples([1] * 40), MAX_TOKENS, seed)[0] for e in group]


def test_the_seed_decides_the_order_of_examples() -> None:
    given_order = [str(number) for number in range(40)]
    orders = [given_order, *(order(seed) for seed in range(3))]
    assert all(sorted(one) == sorted(given_order) for one in orders)
    assert len({tuple(one) for one in orders}) == len(orders)
