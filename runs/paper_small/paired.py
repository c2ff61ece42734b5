"""Intervals of figures that only this comparison needs, over samples paired by prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan

import numpy as np

from pasta_lm.measure.intervals import Interval, bootstrap, share_of_sums


def ratio_difference(
    parts: Sequence[float],
    wholes: Sequence[float],
    other_parts: Sequence[float],
    other_wholes: Sequence[float],
) -> Interval | None:
    """Return one ratio of sums less another, all four paired by prompt.

    None where the wholes of a side sum to nothing in all, or in a draw.
    """
    rows = list(zip(parts, wholes, other_parts, other_wholes, strict=True))
    kept = [row for row in rows if row[1] or row[3]]
    if not kept:
        return None
    found = bootstrap(
        tuple(zip(*kept, strict=True)),
        lambda p, w, q, v, axis: share_of_sums(p, w, axis) - share_of_sums(q, v, axis),
    )
    return None if found is None or isnan(found.low + found.mean + found.high) else found


def of_means(samples: Sequence[Sequence[float]], function: Callable[..., float]) -> Interval | None:
    """Return a function of the means of several samples, all paired by prompt.

    Args:
        samples: Each has one value for each prompt, in the same order.
        function: Takes as many numbers as there are samples.
    """
    apply = np.vectorize(function, otypes=[float])
    return bootstrap(samples, lambda *of, axis: apply(*(one.mean(axis=axis) for one in of)))
