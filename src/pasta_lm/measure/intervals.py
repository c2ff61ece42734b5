"""A mean and its 95 % bootstrap interval: means, geometric means, ratios of sums.

Percentile bootstrap over prompts, 1,000 draws, a fixed seed: the same answers give the same
interval. What is paired by prompt is drawn together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
from scipy import stats

NUM_DRAWS = 1000
CONFIDENCE = 0.95
SEED = 0
BATCH = 50  # draws that are in memory at a time


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its interval."""

    mean: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """Return the object that every table in JSON holds."""
        parts = {"mean": self.mean, "low": self.low, "high": self.high}
        return {name: round(value, 5) for name, value in parts.items()}


def mean(values: Sequence[float]) -> Interval | None:
    """Return the mean of values, one for each prompt; None where there are none."""
    return bootstrap((values,), lambda v, axis: v.mean(axis=axis))


def geometric_mean(values: Sequence[float]) -> Interval | None:
    """Return the geometric mean of positive values; None where there are none."""
    figures = mean([log(value) for value in values])
    return figures and Interval(exp(figures.mean), exp(figures.low), exp(figures.high))


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
    """Return the sum of the parts over the sum of the wholes, paired by prompt.

    None where the wholes sum to nothing: precision without a single fork has no value.
    """
    kept = [(part, whole) for part, whole in zip(parts, wholes, strict=True) if whole]
    if not kept:
        return None
    pair = tuple(zip(*kept, strict=True))
    return bootstrap(pair, share_of_sums)


def share_of_sums(parts: Any, wholes: Any, axis: int) -> Any:
    """Return the sum of the parts over the sum of the wholes, not a number without wholes."""
    with np.errstate(invalid="ignore"):
        return parts.sum(axis=axis) / wholes.sum(axis=axis)


def bootstrap(samples: Sequence[Sequence[float]], statistic: Callable[..., Any]) -> Interval | None:
    """Return a statistic of samples that are paired by prompt; None if there are no prompts.

    Args:
        samples: Each has one value for each prompt, in the same order.
        statistic: Takes an array for each sample, and ``axis``, over which it is computed.
    """
    num = len(samples[0])
    if num == 0:
        return None
    value = float(statistic(*(np.asarray(sample, float) for sample in samples), axis=0))
    if num == 1:  # of one prompt nothing can be drawn
        return Interval(value, value, value)
    result = stats.bootstrap(
        [list(map(float, sample)) for sample in samples],
        statistic,
        n_resamples=NUM_DRAWS,
        batch=BATCH,
        paired=len(samples) > 1,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=SEED,
    )
    low, high = result.confidence_interval
    return Interval(value, float(low), float(high))


def as_dict(interval: Interval | None) -> dict[str, float] | None:
    """Return the JSON object of an interval; None if there is none."""
    return None if interval is None else interval.to_dict()
