"""Quality from verdicts, by hand."""

from __future__ import annotations

import pytest

from pasta_lm.learn.judge import smoothed_ratio


@pytest.mark.parametrize(
    ("verdicts", "smoothing", "ratio"),
    [
        # Ours stands first, then second, then first, then second.
        ([1.0, -1.0, 1.0, -1.0], 1.0, 5.0),
        ([-1.0, 1.0, -1.0, 1.0], 1.0, 1 / 5),
        ([1.0, -1.0, 1.0, -1.0], 0.5, 9.0),
        # A judge that always favours the first place says nothing.
        ([0.7, 0.7, 0.9, 0.9], 1.0, 1.0),
        ([0.0, 0.0], 1.0, 1.0),
        # Wins 0.6 + 0.2, losses 0.5: 1.8 / 1.5.
        ([0.6, -0.2, -0.5, 0.0], 1.0, 1.2),
        ([0.6, -0.2, -0.5, 0.0], 0.1, 1.5),
        ([], 1.0, 1.0),
    ],
)
def test_the_ratio_of_confidences_is_smoothed(
    verdicts: list[float], smoothing: float, ratio: float
) -> None:
    assert smoothed_ratio(verdicts, smoothing) == pytest.approx(ratio)
