"""Speedups, parallelism and lengths of small hand-made answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.measure.speed import realised, speed
from pasta_lm.measure.table import Interval, to_json

lengths = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=8)
USUAL = {"program": "x" * 20, "finish_reason": "stop", "num_illegal": 0}


def answered(**changes: Any) -> AnswerRecord:
    """Return an answer that ended by itself, of ten tokens one after another."""
    usual = USUAL | {"text": "x" * 20, "num_content_tokens": 10, "critical_path": 10}
    return AnswerRecord(**(usual | changes))


def answers(key: str, values: Sequence[Any]) -> list[AnswerRecord]:
    return [answered(**{key: value}) for value in values]


def mean(interval: Interval | None) -> float | None:
    return interval and round(interval.mean, 5)


@pytest.mark.parametrize(
    ("figure", "key", "ours", "theirs", "expected"),
    [
        ("theoretical_speedup", "critical_path", (10,), (20,), 2.0),
        ("theoretical_speedup", "critical_path", (20,), (10,), 0.5),
        # The arithmetic mean of 4 and 1/4 would be more than 2.
        ("theoretical_speedup", "critical_path", (10, 40), (40, 10), 1.0),
        ("theoretical_speedup", "critical_path", (10, 10), (80, 20), 4.0),
        # Answers that ended before their first token.
        ("theoretical_speedup", "critical_path", (0,), (3,), 3.0),
        ("theoretical_speedup", "critical_path", (3,), (0,), 0.33333),
        ("length_ratio", "text", ("xx",), ("x",), 2.0),
        ("length_ratio", "text", ("xx", "x"), ("x", "xx"), 1.0),
        ("length_ratio", "text", ("",), ("xx",), 0.5),
        ("parallelism", "num_content_tokens", (20,), (1,), 2.0),
        ("parallelism", "num_content_tokens", (40, 10), (1, 1), 2.0),
        ("parallelism", "num_content_tokens", (7,), (1,), 0.7),
        ("parallelism", "num_content_tokens", (0,), (1,), 0.001),
    ],
)
def test_figures_are_geometric_means_over_prompts(
    figure: str, key: str, ours: tuple[Any, ...], theirs: tuple[Any, ...], expected: float
) -> None:
    assert mean(speed(answers(key, ours), answers(key, theirs))[figure]) == expected


@given(lengths)
def test_speedup_equals_parallelism_for_equal_content(pairs: list[tuple[int, int]]) -> None:
    """Where the baseline decodes the very same content one after another, the two are the same."""
    ours = [answered(num_content_tokens=n, critical_path=path) for n, path in pairs]
    base = [answered(num_content_tokens=n, critical_path=n) for n, _ in pairs]
    figures = to_json(speed(ours, base))
    assert figures["theoretical_speedup"] == pytest.approx(figures["parallelism"], abs=1e-5)


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
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    speedup: float | None,
    num_timed: int,
) -> None:
    figures = realised(answers("wall_s", ours), answers("wall_s", theirs))
    assert (mean(figures["realised_speedup"]), figures["num_timed"]) == (speedup, num_timed)


def test_no_answers_have_no_figures() -> None:
    names = ("theoretical_speedup", "parallelism", "length_ratio")
    assert speed([], []) == dict.fromkeys(names)
