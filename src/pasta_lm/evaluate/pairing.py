"""Two points paired by prompt: what differs on each, and what can be said of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import exp

from pasta_lm.evaluate.intervals import Interval, mean
from pasta_lm.evaluate.measured import Measured, Speed


class Verdict(StrEnum):
    """What can be said of two points, in the order in which the best is looked for."""

    BETTER = "better"
    """At least as good on both axes, and better on one by more than chance explains."""
    NOT_SEPARATED = "not separated"
    TRADE = "not separated (a trade)"
    """Better on one axis and worse on the other, both by more than chance explains."""
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Pairing:
    """One point of ours against one of another method, paired by prompt.

    Attributes:
        quality: Our grade less theirs.
        speed: Our speedup / theirs, a geometric mean.
    """

    quality: Interval
    speed: Interval

    @property
    def verdict(self) -> Verdict:
        """Return what the two intervals say together."""
        is_better = self.quality.low > 0, self.speed.low > 1
        is_worse = self.quality.high < 0, self.speed.high < 1
        if any(is_better) and self.quality.mean >= 0 and self.speed.mean >= 1:
            return Verdict.BETTER
        if any(is_worse) and self.quality.mean <= 0 and self.speed.mean <= 1:
            return Verdict.WORSE
        return Verdict.TRADE if any(is_better) and any(is_worse) else Verdict.NOT_SEPARATED


def pair(ours: Measured, rival: Measured, kind: Speed) -> Pairing | None:
    """Return how two points compare; None where one of them was not timed."""
    gain = speed_ratio(ours, rival, kind)
    both = [name for name in ours.answers if name in rival.answers]
    grades = mean([ours.answers[name].grade - rival.answers[name].grade for name in both])
    return None if gain is None or grades is None else Pairing(grades, gain)


def speed_ratio(ours: Measured, other: Measured, kind: Speed) -> Interval | None:
    """Return our speedup over the other's on the prompts that both have, a geometric mean."""
    fast, slow = ours.log_speed(kind), other.log_speed(kind)
    gain = mean([fast[name] - slow[name] for name in fast if name in slow])
    return gain and Interval(exp(gain.mean), exp(gain.low), exp(gain.high))
