"""Bootstrap intervals of means, geometric means and ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from random import Random
from statistics import fmean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.measure.table import Interval, geometric_mean, mean, ratio, to_json

NUM_DRAWS = 4000
Pairs = Sequence[tuple[float, float]]

grades = st.lists(st.floats(0, 1), min_size=2, max_size=12)
counts = st.lists(
    st.integers(0, 5).flatmap(lambda whole: st.tuples(st.integers(0, whole), st.just(whole))),
    max_size=12,
)


def found(interval: Interval | None) -> Interval:
    assert interval is not None
    return interval


def tiny_bootstrap(statistic: Callable[[Pairs], float], pairs: Pairs) -> tuple[float, float]:
    """Draw prompts again and again, as the definition says, and return where 95 % of draws lie."""
    random = Random(1)
    draws = [statistic(random.choices(pairs, k=len(pairs))) for _ in range(NUM_DRAWS)]
    cuts = quantiles(draws, n=40, method="inclusive")
    return cuts[0], cuts[-1]


def mean_of(pairs: Pairs) -> float:
    return fmean(value for value, _ in pairs)


def geometric_mean_of(pairs: Pairs) -> float:
    return exp(fmean(log(value) for value, _ in pairs))


def ratio_of(pairs: Pairs) -> float:
    return sum(part for part, _ in pairs) / sum(whole for _, whole in pairs)


# --- the estimate


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        *((mean(v), m) for v, m in [([1, 2, 6], 3), ([0, 1], 0.5), ([-2, 2], 0), ([7], 7)]),
        (mean([True, False, True, True]), 0.75),
        *((geometric_mean(v), m) for v, m in [([1, 4], 2), ([0.5, 2], 1), ([1, 1, 8], 2)]),
        (ratio([1, 2], [2, 4]), 0.5),
        (ratio([0, 3], [1, 3]), 0.75),  # the mean of the two ratios would be 0.5
        (ratio([0, 1, 0], [0, 2, 0]), 0.5),
        (ratio([0, 0], [3, 4]), 0),
        (ratio([5], [4]), 1.25),
    ],
)
def test_the_estimate_is_that_of_the_definition(interval: Interval | None, expected: float) -> None:
    assert found(interval).mean == pytest.approx(expected)


def test_empty_samples_have_no_interval() -> None:
    assert mean([]) is None
    assert geometric_mean([]) is None
    assert ratio([], []) is None
    assert ratio([0, 0], [0, 0]) is None


@pytest.mark.parametrize("num", [1, 2, 3, 100])
@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, 3.7])
def test_a_single_value_and_equal_values_have_an_interval_of_width_0(
    num: int, value: float
) -> None:
    intervals = [mean([value] * num)]
    if value:
        intervals += [geometric_mean([value] * num), ratio([value] * num, [1.0] * num)]
    for one in map(found, intervals):
        assert (one.mean, one.low, one.high) == pytest.approx((value, value, value))


def test_invalid_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio([1, 2], [1])
    with pytest.raises(ValueError, match="positive|domain"):
        geometric_mean([1, 0])


# --- its bounds


def drawn(num: int, seed: int) -> list[tuple[float, float]]:
    random = Random(seed)
    wholes = [random.randint(0, 6) for _ in range(num)]
    return [(random.randint(0, whole), whole) for whole in wholes]


@pytest.mark.parametrize("num", [10, 150])
def test_bounds_equal_those_of_a_plain_bootstrap(num: int) -> None:
    random = Random(num)
    values = [(random.betavariate(0.5, 0.2), 0.0) for _ in range(num)]
    speedups = [(random.lognormvariate(0.5, 0.4), 0.0) for _ in range(num)]
    pairs = drawn(num, seed=num)
    for interval, statistic, sample in [
        (mean([value for value, _ in values]), mean_of, values),
        (geometric_mean([value for value, _ in speedups]), geometric_mean_of, speedups),
        (ratio(*zip(*pairs, strict=True)), ratio_of, pairs),
    ]:
        one = found(interval)
        low, high = tiny_bootstrap(statistic, sample)
        # What two bootstraps of so many draws differ by is a small part of the width.
        assert (one.low, one.high) == pytest.approx((low, high), abs=0.1 * (high - low))
        assert one.low < one.mean < one.high


def test_paired_samples_are_drawn_together() -> None:
    wholes = [1.0, 2, 3, 50, 4, 5, 6, 1]
    one = found(ratio([whole / 2 for whole in wholes], wholes))
    assert (one.low, one.high) == pytest.approx((0.5, 0.5))  # drawn apart, 50 would meet 1


def test_prompts_with_an_empty_whole_do_not_count() -> None:
    pairs = [(1.0, 2.0), (0.0, 1.0), (3.0, 3.0)]
    with_nothing = [(0.0, 0.0), *pairs, (0.0, 0.0)]
    assert ratio(*zip(*with_nothing, strict=True)) == ratio(*zip(*pairs, strict=True))


@given(counts)
def test_shares_lie_between_0_and_1(pairs: list[tuple[int, int]]) -> None:
    one = ratio([part for part, _ in pairs], [whole for _, whole in pairs])
    if any(whole for _, whole in pairs):
        assert 0 <= found(one).low <= found(one).high <= 1
    else:
        assert one is None


def test_intervals_are_rounded_to_five_digits_in_json() -> None:
    told = to_json(Interval(1 / 3, 0.123456789, 2.0))
    assert told == {"mean": 0.33333, "low": 0.12346, "high": 2.0}
