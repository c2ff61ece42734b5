"""Intervals of the comparison's own figures: functions of means, differences of ratios."""

from __future__ import annotations

from collections.abc import Sequence
from operator import truediv
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.measure.intervals import Interval, mean, ratio

Pairs = Sequence[tuple[float, float]]
counts = st.lists(
    st.integers(0, 5).flatmap(lambda whole: st.tuples(st.integers(0, whole), st.just(whole))),
    max_size=12,
)


def interval(one: Interval | None) -> Interval:
    assert one is not None
    return one


def test_a_function_of_means_draws_its_samples_together(paper: dict[str, Any]) -> None:
    of_means = paper["paired"].of_means
    fast, good = [1.0, 2.0, 4.0, 1.5], [0.25, 1.0, 0.5, 0.5]
    assert of_means([fast], lambda one: one) == mean(fast)
    share, same = (interval(one) for one in (of_means([fast, good], truediv), ratio(fast, good)))
    assert share.to_dict() == same.to_dict()
    apart = [[a - b for a, b in zip(fast, good, strict=True)]]
    both, one = (
        interval(of_means(samples, lambda *of: max(of[0] - sum(of[1:]), 0.0)))
        for samples in ([fast, good], apart)
    )
    assert (both.mean, both.low, both.high) == pytest.approx((one.mean, one.low, one.high))
    assert of_means([[], []], lambda one, other: one + other) is None


@given(counts, counts)
def test_a_difference_of_ratios_changes_its_sign_with_its_sides(
    paper: dict[str, Any], ours: Pairs, other: Pairs
) -> None:
    ratio_difference = paper["paired"].ratio_difference
    num = min(len(ours), len(other))
    sides = [list(zip(*side[:num], strict=True)) or [(), ()] for side in (ours, other)]
    found = ratio_difference(*sides[0], *sides[1])
    sums = [[sum(column) for column in side] for side in sides]
    if not (sums[0][1] and sums[1][1]):
        assert found is None
    elif found is not None:  # None where a draw may have nothing to divide by
        (part, whole), (other_part, other_whole) = sums
        assert found.mean == pytest.approx(part / whole - other_part / other_whole, abs=1e-9)
        back = ratio_difference(*sides[1], *sides[0])
        assert back is not None
        assert (back.low, back.high) == pytest.approx((-found.high, -found.low), abs=1e-9)


def test_a_difference_of_ratios_is_paired_by_prompt(paper: dict[str, Any]) -> None:
    parts, wholes = [1, 0, 3, 2] * 10, [2, 1, 4, 2] * 10
    same = paper["paired"].ratio_difference(parts, wholes, parts, wholes)
    assert same == Interval(0, 0, 0)  # drawn apart, the two would differ
