"""Speedups, parallelism and lengths of small hand-made answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.measure.speed import realised, speed
from pasta_lm.measure.table import Interval, to_json

lengths = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=8)


def answered(**changes: Any) -> AnswerRecord:
    """Return an answer that ended by itself, of ten tokens one after another."""
    usual: dict[str, Any] = {
        "text": "x" * 20,
        "program": "x" * 20,
        "finish_reason": "stop",
        "num_illegal": 0,
        "num_content_tokens": 10,
        "critical_path": 10,
    }
    return AnswerRecord(**(usual | changes))


def mean(interval: Interval | None) -> float | None:
    return interval and round(interval.mean, 5)


def paths(*critical_paths: int, **rest: Any) -> list[AnswerRecord]:
    return [answered(critical_path=path, **rest) for path in critical_paths]


def clocks(*walls: float | None) -> list[AnswerRecord]:
    return [answered(wall_s=wall) for wall in walls]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((10,), (20,), 2.0),
        ((20,), (10,), 0.5),
        ((10, 40), (40, 10), 1.0),  # the arithmetic mean of 4 and 1/4 would be more than 2
        ((10, 10), (80, 20), 4.0),
        ((0,), (3,), 3.0),  # an answer that ended before its first token
        ((3,), (0,), 0.33333),
    ],
)
def test_theoretical_speedup_is_the_ratio_of_critical_paths(
    ours: tuple[int, ...], theirs: tuple[int, ...], expected: float
) -> None:
    assert mean(speed(paths(*ours), paths(*theirs))["theoretical_speedup"]) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([(20, 10)], 2.0), ([(40, 10), (10, 10)], 2.0), ([(7, 10)], 0.7), ([(0, 10)], 0.001)],
)
def test_parallelism_is_content_over_critical_path(
    counts: list[tuple[int, int]], expected: float
) -> None:
    ours = [answered(num_content_tokens=n, critical_path=path) for n, path in counts]
    assert mean(speed(ours, ours)["parallelism"]) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [(("xx",), ("x",), 2.0), (("xx", "x"), ("x", "xx"), 1.0), (("",), ("xx",), 0.5)],
)
def test_lengths_are_compared_in_characters(
    ours: tuple[str, ...], theirs: tuple[str, ...], expected: float
) -> None:
    given_ones, base = ([answered(text=text) for text in side] for side in (ours, theirs))
    assert mean(speed(given_ones, base)["length_ratio"]) == expected


@given(lengths)
def test_speedup_equals_parallelism_for_equal_content(pairs: list[tuple[int, int]]) -> None:
    """Where the baseline decodes the very same content one after another, the two are the same."""
    ours = [answered(num_content_tokens=n, critical_path=path) for n, path in pairs]
    base = [answered(num_content_tokens=n, critical_path=n) for n, _ in pairs]
    found = to_json(speed(ours, base))
    assert found["theoretical_speedup"] == pytest.approx(found["parallelism"], abs=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "speedup", "num_timed"),
    [
        ((), (), None, 0),
        ((1.0,), (2.0,), 2.0, 1),
        ((1.0, 4.0), (4.0, 1.0), 1.0, 2),
        ((0.5, None), (1.0, 1.0), 2.0, 1),  # an answer that was decoded among others has no clock
        ((1.0, 1.0), (1.5, None), 1.5, 1),
        ((None,), (None,), None, 0),
    ],
)
def test_realised_speedup_is_the_ratio_of_clocks(
    ours: tuple[float | None, ...],
    theirs: tuple[float | None, ...],
    speedup: float | None,
    num_timed: int,
) -> None:
    found = realised(clocks(*ours), clocks(*theirs))
    assert (mean(found["realised_speedup"]), found["num_timed"]) == (speedup, num_timed)


def test_no_answers_have_no_figures() -> None:
    names = ("theoretical_speedup", "parallelism", "length_ratio")
    assert speed([], []) == dict.fromkeys(names)
