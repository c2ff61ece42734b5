"""Bootstrap intervals of means, geometric means and ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from random import Random
from statistics import fmean, quantiles

import pytest

from pasta_lm.measure.table import Interval, geometric_mean, mean, ratio, to_json

NUM_DRAWS = 4000
Pairs = Sequence[tuple[float, float]]


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


def test_invalid_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio([1, 2], [1])
    with pytest.raises(ValueError, match="positive|domain"):
        geometric_mean([1, 0])


# --- its bounds


@pytest.mark.parametrize("num", [10, 150])
def test_bounds_equal_those_of_a_plain_bootstrap(num: int) -> None:
    random = Random(num)
    values = [(random.betavariate(0.5, 0.2), 0.0) for _ in range(num)]
    speedups = [(random.lognormvariate(0.5, 0.4), 0.0) for _ in range(num)]
    pairs = [(random.randint(0, whole), whole) for whole in random.choices(range(7), k=num)]
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


def test_intervals_are_rounded_to_five_digits_in_json() -> None:
    told = to_json(Interval(1 / 3, 0.123456789, 2.0))
    assert told == {"mean": 0.33333, "low": 0.12346, "high": 2.0}
