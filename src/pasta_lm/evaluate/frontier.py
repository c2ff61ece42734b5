"""Many models and strategies at once: who is faster, who is better, and which of it is certain.

All points answered the same prompts, so that differences are paired by prompt. Headlines are over
the families that training sees. Speed is theoretical, over all prompts, or realised, over those
that were decoded alone.

Source: PASTA, Figure 4 (quality against speed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError
from pasta_lm.evaluate.answered import Answered, read_answers
from pasta_lm.evaluate.comparison import Comparison, Point
from pasta_lm.evaluate.intervals import Interval, mean
from pasta_lm.evaluate.quality import as_dict, quality
from pasta_lm.evaluate.speed import realised, speed
from pasta_lm.strategies import sequential
from pasta_lm.tasks.registry import training_families

Figures = dict[str, Any]
ByTask = Mapping[str, Answered]

USUAL_LENGTH = (0.95, 1.05)
"""Lengths against the baseline's outside of which a point is flagged: brevity looks like speed."""

MOST_TIES = 0.01
"""Share of the baseline's answers that rounding may change between two machines."""


class Speed(StrEnum):
    """In which sense an answer is fast."""

    THEORETICAL = "theoretical"
    REALISED = "realised"


class Verdict(StrEnum):
    """What can be said of two points, in the order in which the best is looked for."""

    BETTER = "better"
    """At least as good on both axes, and better on one by more than chance explains."""
    NOT_SEPARATED = "not separated"
    TRADE = "a trade"
    """Better on one axis and worse on the other, both by more than chance explains."""
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of one point and of its baseline, by task; the same tasks in the same order.

    Attributes:
        point: Whose.
        answers: To all prompts of the families that training sees.
        baseline: The baseline's.
        timed: Those that were decoded alone.
        timed_baseline: The baseline's, in the same turn.
    """

    point: Point
    answers: ByTask
    baseline: ByTask
    timed: ByTask
    timed_baseline: ByTask

    def log_speed(self, kind: Speed) -> dict[str, float]:
        """Return by task the logarithm of the speedup over the baseline."""
        if kind is Speed.THEORETICAL:
            return {
                name: log(max(self.baseline[name].critical_path, 1) / max(one.critical_path, 1))
                for name, one in self.answers.items()
            }
        clocks = {
            name: (self.timed_baseline[name].wall_s, one.wall_s)
            for name, one in self.timed.items()
            if name in self.timed_baseline
        }
        return {name: log(base / ours) for name, (base, ours) in clocks.items() if base and ours}


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


def measure(comparison: Comparison) -> list[Measured]:
    """Return the points whose answers are there.

    Raises:
        InputError: a file is no record file, lacks what is compared, or is of other prompts.
    """
    found = [_read(point) for point in comparison.points if Path(point.records).exists()]
    for other in found[1:]:
        _check_alike(found[0], other)
    return found


def report(comparison: Comparison, measured: Sequence[Measured]) -> Figures:
    """Return the object that ``pasta evaluate frontier --json`` prints."""
    by_name = {one.point.name: one for one in measured}
    points = [{**_about(one.point), **_figures(one)} for one in measured]
    for kind in Speed:
        on_it = set(pareto(points, kind))
        for point in points:
            point.setdefault("on_frontier", {})[kind.value] = point["name"] in on_it
    missing = [point for point in comparison.points if point.name not in by_name]
    return {
        "title": comparison.title,
        "ours": comparison.ours,
        "baseline": comparison.baseline,
        "split": comparison.split,
        "num_prompts": len(measured[0].answers) if measured else 0,
        "kinds": sorted({point["kind"] for point in points}),
        "points": points,
        "comparisons": list(compare(comparison, measured)),
        "not_run": [{**_about(point), "command": comparison.command(point)} for point in missing],
    }


def pareto(points: Sequence[Figures], kind: Speed) -> list[str]:
    """Return the names of the points that no other one beats on both axes, slowest first."""
    places = {
        point["name"]: (point[f"{kind}_speedup"]["mean"], point["quality"]["mean"])
        for point in points
        if point[f"{kind}_speedup"]
    }
    kept = [
        name
        for name, (fast, good) in places.items()
        if not any(
            other[0] >= fast and other[1] >= good and other != (fast, good)
            for other in places.values()
        )
    ]
    return sorted(kept, key=lambda name: places[name])


def compare(comparison: Comparison, measured: Sequence[Measured]) -> Iterator[Figures]:
    """Yield for each point of another method, and each sense of speed, the best that we have.

    The best is a point of ours that is better; where there is none, the verdict says what is left.
    """
    ours = [one for one in measured if one.point.method == comparison.ours]
    for rival in measured:
        if rival.point.method == comparison.ours:
            continue
        for kind in Speed:
            pairings = [(one, found) for one in ours if (found := pair(one, rival, kind))]
            if pairings:
                yield _best(rival, kind, pairings)


def pair(ours: Measured, rival: Measured, kind: Speed) -> Pairing | None:
    """Return how two points compare; None where one of them was not timed."""
    fast, slow = ours.log_speed(kind), rival.log_speed(kind)
    both = [name for name in fast if name in slow]
    gain = mean([fast[name] - slow[name] for name in both])
    grades = mean([one.grade - rival.answers[name].grade for name, one in ours.answers.items()])
    if gain is None or grades is None:
        return None
    return Pairing(grades, Interval(exp(gain.mean), exp(gain.low), exp(gain.high)))


def _best(rival: Measured, kind: Speed, pairings: Sequence[tuple[Measured, Pairing]]) -> Figures:
    order = list(Verdict)
    one, found = min(pairings, key=lambda pairing: order.index(pairing[1].verdict))
    return {
        "rival": rival.point.name,
        "speed": kind.value,
        "verdict": found.verdict.value,
        "by": one.point.name,
        "quality_difference": as_dict(found.quality),
        "speed_ratio": as_dict(found.speed),
    }


def _read(point: Point) -> Measured:
    trained = set(training_families())
    rows = [one for one in read_answers(Path(point.records)) if one.family in trained]
    graded, clocks = (
        {
            name: {one.task_id: one for one in rows if one.strategy == name and is_kept(one)}
            for name in (point.strategy, sequential.NAME)
        }
        for is_kept in _ROUNDS
    )
    answers, baseline = graded[point.strategy], graded[sequential.NAME]
    if not answers or answers.keys() != baseline.keys():
        raise InputError(
            f"{point.records} has {len(answers)} answers by {point.strategy} and {len(baseline)} "
            f"by {sequential.NAME}: each prompt needs both",
            hint="write it with `pasta evaluate tasks --records`",
        )
    return Measured(point, answers, baseline, clocks[point.strategy], clocks[sequential.NAME])


def _check_alike(first: Measured, other: Measured) -> None:
    """Refuse two points that cannot be paired."""
    files = f"{other.point.records} and {first.point.records}"
    if other.answers.keys() != first.answers.keys():
        raise InputError(
            f"{files} have answers to other prompts",
            hint="evaluate all points with the same --split, --seed and --num-prompts",
        )
    differ = [n for n, one in other.baseline.items() if one.text != first.baseline[n].text]
    if len(differ) > MOST_TIES * len(first.baseline):
        raise InputError(
            f"{files} have {len(differ)} different answers of the baseline",
            hint="evaluate all points with the same --baseline",
        )


_ROUNDS: tuple[Callable[[Answered], bool], ...] = (
    lambda one: one.wall_s is None,
    lambda one: one.wall_s is not None,
)
"""Which rows of a record file were decoded among others, and which alone."""


def _about(point: Point) -> Figures:
    kept = ("name", "method", "label", "model", "strategy", "records")
    return {key: getattr(point, key) for key in kept}


def _figures(one: Measured) -> Figures:
    kinds = {answer.kind or "not said" for answer in one.answers.values()}
    ids = list(one.answers)
    figures = _over(one, ids)
    low, high = USUAL_LENGTH
    return {
        "kind": ", ".join(sorted(kinds)),
        **figures,
        "is_length_unusual": not low <= figures["length_ratio"]["mean"] <= high,
        "families": {
            family: _over(one, [name for name in ids if one.answers[name].family == family])
            for family in training_families()
        },
    }


def _over(one: Measured, ids: Sequence[str]) -> Figures:
    """Return the figures of a point over some prompts."""
    answers, baseline = ([side[name] for name in ids] for side in (one.answers, one.baseline))
    both = [name for name in ids if name in one.timed and name in one.timed_baseline]
    clocks = ([side[name] for name in both] for side in (one.timed, one.timed_baseline))
    forks = [bool(answer.structure.forked or answer.structure.num_stray) for answer in answers]
    return {
        "num_prompts": len(answers),
        "fork_rate": sum(forks) / len(forks) if forks else None,
        **quality(answers, baseline),
        **speed(answers, baseline),
        **realised(*clocks),
    }
