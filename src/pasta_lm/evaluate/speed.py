"""How fast the answers are: theoretical and realised speedup, parallelism, lengths.

Speedups are against the baseline's own answer to the same prompt, and geometric means.

Source: PASTA, section 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pasta_lm.evaluate.intervals import geometric_mean
from pasta_lm.evaluate.quality import as_dict


class Timed(Protocol):
    """What of an answer says how fast it was."""

    @property
    def text(self) -> str:
        """Return what a reader gets."""

    @property
    def critical_path(self) -> int:
        """Return how many tokens were decoded one after another."""

    @property
    def parallelism(self) -> float:
        """Return content tokens / critical path."""

    @property
    def wall_s(self) -> float | None:
        """Return seconds, where it was decoded alone."""


def speed(answers: Sequence[Timed], baseline: Sequence[Timed]) -> dict[str, Any]:
    """Return what does not need a clock, of answers to the same tasks, in order.

    ``length_ratio`` is in characters of the answers; theoretical speedup is about parallelism
    times length ratio of the baseline's answer.
    """
    pairs = list(zip(answers, baseline, strict=True))
    return {
        "theoretical_speedup": as_dict(
            geometric_mean([max(b.critical_path, 1) / max(a.critical_path, 1) for a, b in pairs])
        ),
        "parallelism": as_dict(geometric_mean([max(a.parallelism, 1e-3) for a in answers])),
        "length_ratio": as_dict(
            geometric_mean([max(len(a.text), 1) / max(len(b.text), 1) for a, b in pairs])
        ),
    }


def realised(answers: Sequence[Timed], baseline: Sequence[Timed]) -> dict[str, Any]:
    """Return the ratio of the clocks of answers that were decoded alone; None without any."""
    pairs = zip(answers, baseline, strict=True)
    ratios = [b.wall_s / a.wall_s for a, b in pairs if a.wall_s and b.wall_s]
    return {"realised_speedup": as_dict(geometric_mean(ratios)), "num_timed": len(ratios)}
