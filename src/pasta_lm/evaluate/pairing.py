"""Two points paired by prompt: what differs on each, and what can be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp
from statistics import fmean

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
    return pair_over([(ours, rival)], kind)


def pair_over(both: Sequence[tuple[Measured, Measured]], kind: Speed) -> Pairing | None:
    """Return how ours and a rival's point compare over several seeds.

    Each prompt counts by its mean over the seeds; None where none has what is compared.
    """
    grades = _mean_of([_grades(*one) for one in both])
    gains = _mean_of([_gains(*one, kind) for one in both])
    return None if gains is None or grades is None else Pairing(grades, _exp(gains))


def speed_ratio(ours: Measured, other: Measured, kind: Speed) -> Interval | None:
    """Return our speedup over the other's on the prompts that both have, a geometric mean."""
    gains = _mean_of([_gains(ours, other, kind)])
    return gains and _exp(gains)


def _grades(ours: Measured, other: Measured) -> dict[str, float]:
    """Return by task our grade less theirs."""
    theirs = other.answers
    return {n: one.grade - theirs[n].grade for n, one in ours.answers.items() if n in theirs}


def _gains(ours: Measured, other: Measured, kind: Speed) -> dict[str, float]:
    """Return by task the logarithm of our speedup over theirs."""
    fast, slow = ours.log_speed(kind), other.log_speed(kind)
    return {name: fast[name] - slow[name] for name in fast if name in slow}


def _mean_of(by_seed: Sequence[Mapping[str, float]]) -> Interval | None:
    """Return the mean over prompts that all seeds have, each averaged over the seeds first."""
    names = [name for name in by_seed[0] if all(name in one for one in by_seed)] if by_seed else []
    return mean([fmean(one[name] for one in by_seed) for name in names])


def _exp(found: Interval) -> Interval:
    return Interval(exp(found.mean), exp(found.low), exp(found.high))
