"""Points of a comparison: answers of a model by a strategy, paired by prompt."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log
from pathlib import Path

from pasta_lab.evaluate.records import GradedAnswer, read_answers
from pasta_lab.tasks.registry import training_families
from pasta_lm.errors import InputError, UsageError
from pasta_lm.measure.table import Interval, mean
from pasta_lm.strategies import PASTA, SEQUENTIAL
from pasta_lm.strategies.requests import LOOKUP, PASTA_LOOKUP

ByTask = Mapping[str, GradedAnswer]

MAX_TIES = 0.01
"""Share of the baseline's answers that rounding may change between two machines."""


class Speed(StrEnum):
    """The two kinds of speedup."""

    THEORETICAL = "theoretical"
    REALISED = "realised"


@dataclass(frozen=True, slots=True)
class PointAnswers:
    """The answers of one point and of its baseline, by task, in the same order."""

    point: Point
    answers: ByTask
    """To all prompts of the families that training sees."""
    baseline: ByTask
    timed: ByTask
    """Those that were decoded alone."""
    timed_baseline: ByTask

    @property
    def is_speculative(self) -> bool:
        """Return whether passes check several guesses, so that they give no theoretical speedup."""
        return self.point.strategy in (LOOKUP, PASTA_LOOKUP)

    def log_speed(self, kind: Speed) -> dict[str, float]:
        """Return by task the logarithm of the speedup over the baseline, if there is one."""
        if kind is Speed.THEORETICAL:
            if self.is_speculative:
                return {}
            speeds = (
                (name, answer.theoretical_speedup(self.baseline[name]))
                for name, answer in self.answers.items()
            )
            return {name: log(speed) for name, speed in speeds}
        clocks = (
            (name, answer.realised_speedup(self.timed_baseline[name]))
            for name, answer in self.timed.items()
            if name in self.timed_baseline
        )
        return {name: log(speed) for name, speed in clocks if speed}


def read_points(comparison: Comparison) -> list[PointAnswers]:
    """Return the points whose record files exist.

    Raises:
        InputError: a file is no record file, lacks answers, or has answers to other prompts.
    """
    entries = [_read(point) for point in comparison.points if Path(point.records).exists()]
    for other in entries[1:]:
        _check_pairing(entries[0], other)
    return entries


def _read(point: Point) -> PointAnswers:
    trained = set(training_families())
    rows = [row for row in read_answers(Path(point.records)) if row.family in trained]

    def by_task(strategy: str, *, is_timed: bool) -> ByTask:
        some = (row for row in rows if row.strategy == strategy)
        return {row.task_id: row for row in some if (row.wall_s is not None) is is_timed}

    answers, baseline, timed, timed_baseline = (
        by_task(name, is_timed=is_timed)
        for is_timed in (False, True)
        for name in (point.strategy, SEQUENTIAL)
    )
    if not answers or answers.keys() != baseline.keys():
        raise InputError(
            f"{point.records} has {len(answers)} answers by {point.strategy} and {len(baseline)} "
            f"by {SEQUENTIAL}: each prompt needs both",
            hint="write it with `pasta-lab evaluate tasks --records`",
        )
    return PointAnswers(point, answers, baseline, timed, timed_baseline)


def _check_pairing(first: PointAnswers, other: PointAnswers) -> None:
    files = f"{other.point.records} and {first.point.records}"
    if other.answers.keys() != first.answers.keys():
        raise InputError(
            f"{files} have answers to other prompts",
            hint="evaluate all points with the same --split, --seed and --num-prompts",
        )
    differ = [n for n, answer in other.baseline.items() if answer.text != first.baseline[n].text]
    if len(differ) > MAX_TIES * len(first.baseline):
        raise InputError(
            f"{files} have {len(differ)} different answers of the baseline",
            hint="evaluate all points with the same --baseline",
        )


class Verdict(StrEnum):
    """How two points compare, in the order in which the best pairing is chosen."""

    BETTER = "better"
    """At least as good on both axes, and better on one by more than chance explains."""
    NOT_SEPARATED = "not separated"
    TRADE = "not separated (a trade)"
    """Better on one axis and worse on the other, both by more than chance explains."""
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Pairing:
    """One of our points against a point of another method, paired by prompt."""

    quality: Interval
    """Our grade minus theirs."""
    speed: Interval
    """Our speedup / theirs, a geometric mean."""

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


def pair(ours: PointAnswers, other: PointAnswers, kind: Speed) -> Pairing | None:
    """Return how two points compare; None if one of them was not timed."""
    theirs = other.answers
    grades = [answer.grade - theirs[n].grade for n, answer in ours.answers.items() if n in theirs]
    quality, speed = mean(grades), speed_ratio(ours, other, kind)
    return None if quality is None or speed is None else Pairing(quality, speed)


def speed_ratio(ours: PointAnswers, other: PointAnswers, kind: Speed) -> Interval | None:
    """Return our speedup over the other's on the prompts that both have, a geometric mean."""
    fast, slow = ours.log_speed(kind), other.log_speed(kind)
    log_ratio = mean([fast[name] - slow[name] for name in fast if name in slow])
    return log_ratio and Interval(exp(log_ratio.mean), exp(log_ratio.low), exp(log_ratio.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One model that answers by one strategy."""

    name: str
    method: str
    """Points of one method are joined in the plot and share a mark."""
    model: str
    """A folder or a hub id."""
    records: str
    """The file of its answers, as ``pasta-lab evaluate tasks --records`` writes it."""
    strategy: str = PASTA
    """Which answers in the file are the point's."""
    label: str = ""
    """Stands beside the mark, for example the value of lambda."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Points that answered the same prompts, compared with the same baseline."""

    points: tuple[Point, ...]
    ours: str
    """The method that is compared with each other one."""
    baseline: str
    """The folder or hub id of the sequential baseline."""
    title: str = "Quality against speed"
    split: str = "test"
    wordings: str | None = None
    """Another split whose wordings are used instead."""
    num_prompts: int = 8400
    """Of the families that training sees, together."""
    num_timed: int = 10
    """Prompts of each family that are decoded alone, for clocks."""

    def __post_init__(self) -> None:
        """Validate combinations of keys."""
        if not self.points:
            raise UsageError("a comparison needs points", hint="each is a table: [[points]]")
        names = [point.name for point in self.points]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise UsageError(f"two points have the name {min(twice)!r}")
        if self.ours not in {point.method for point in self.points}:
            raise UsageError(f"ours is {self.ours!r}, and no point has that method")

    def command(self, point: Point) -> str:
        """Return the command that makes the file of a point's answers."""
        words = ["pasta-lab", "evaluate", "tasks", "--model", point.model]
        words += ["--baseline", self.baseline, "--strategies", f"sequential,{point.strategy}"]
        words += ["--split", self.split, "--num-prompts", str(self.num_prompts)]
        words += ["--num-timed", str(self.num_timed), "--set", "threads=1"]
        if self.wordings is not None:
            words += ["--set", f"wordings={self.wordings}"]
        return shlex.join([*words, "--records", point.records])
