"""Quality from verdicts, by hand."""

from __future__ import annotations

import pytest

from pasta_lm.learn.judge.judge import Verdict, Winner, smoothed_ratio

FIRST, SECOND, TIE = Winner.FIRST, Winner.SECOND, Winner.TIE


@pytest.mark.parametrize(
    ("verdicts", "smoothing", "ratio"),
    [
        # Ours stands first, then second, then first, then second.
        ([(FIRST, 1.0), (SECOND, 1.0), (FIRST, 1.0), (SECOND, 1.0)], 1.0, 5.0),
        ([(SECOND, 1.0), (FIRST, 1.0), (SECOND, 1.0), (FIRST, 1.0)], 1.0, 1 / 5),
        ([(FIRST, 1.0), (SECOND, 1.0), (FIRST, 1.0), (SECOND, 1.0)], 0.5, 9.0),
        # A judge that always favours the first place says nothing.
        ([(FIRST, 0.7), (FIRST, 0.7), (FIRST, 0.9), (FIRST, 0.9)], 1.0, 1.0),
        ([(TIE, 1.0), (TIE, 0.3)], 1.0, 1.0),
        # Wins 0.6 + 0.2, losses 0.5: 1.8 / 1.5.
        ([(FIRST, 0.6), (SECOND, 0.2), (SECOND, 0.5), (TIE, 0.0)], 1.0, 1.2),
        ([(FIRST, 0.6), (SECOND, 0.2), (SECOND, 0.5), (TIE, 0.0)], 0.1, 1.5),
        ([], 1.0, 1.0),
    ],
)
def test_the_ratio_of_confidences_is_smoothed(
    verdicts: list[tuple[Winner, float]], smoothing: float, ratio: float
) -> None:
    given = [Verdict(*verdict) for verdict in verdicts]
    assert smoothed_ratio(given, smoothing) == pytest.approx(ratio)
