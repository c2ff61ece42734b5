"""The answers of points, read from their records: the same tasks in the same order, or refused.

Bounds were replayed beside the timed prompts alone, so they have answers to those and no quality.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import log
from pathlib import Path

from pasta_lm.errors import InputError
from pasta_lm.evaluate.answered import Answered, read_answers
from pasta_lm.evaluate.answering import BOUNDS, PERFECT
from pasta_lm.evaluate.comparison import Comparison, Point
from pasta_lm.strategies import sequential
from pasta_lm.strategies.model import SPECULATIVE
from pasta_lm.tasks.registry import make, training_families
from pasta_lm.tasks.task import Task

ByTask = Mapping[str, Answered]

MOST_TIES = 0.01
"""Share of the baseline's answers that rounding may change between two machines."""


class Speed(StrEnum):
    """In which sense an answer is fast."""

    THEORETICAL = "theoretical"
    REALISED = "realised"


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of one point and of its baseline, by task; the same tasks in the same order.

    Attributes:
        point: Whose.
        answers: To all prompts of the families that training sees; of a bound, to the timed ones.
        baseline: The baseline's.
        timed: Those that were decoded alone.
        timed_baseline: The baseline's, in the same turn.
        perfect: The references with their true forks, replayed in the same turn; often none.
    """

    point: Point
    answers: ByTask
    baseline: ByTask
    timed: ByTask
    timed_baseline: ByTask
    perfect: ByTask

    @property
    def is_bound(self) -> bool:
        """Tell whether its text was forced: it has a speed, and no quality."""
        return self.point.strategy in BOUNDS

    @property
    def is_guessed(self) -> bool:
        """Tell whether a pass checks several guesses: passes, drafts apart, are no theory of it."""
        return self.point.strategy in SPECULATIVE

    def log_speed(self, kind: Speed) -> dict[str, float]:
        """Return by task the logarithm of the speedup over the baseline, where it has one."""
        if kind is Speed.THEORETICAL and self.is_guessed:
            return {}
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


def measure(comparison: Comparison) -> list[Measured]:
    """Return the points whose answers are there.

    Raises:
        InputError: a file is no record file, lacks what is compared, or is of other prompts.
    """
    found = [_read(point) for point in comparison.points if Path(point.records).exists()]
    answering = [one for one in found if not one.is_bound]
    for other in found:
        if answering:
            _check_alike(answering[0], other)
    return found


def task_of(name: str, family: str, wordings: str | None) -> Task:
    """Draw a task again: its name says its split and its seed."""
    split, seed = name.removeprefix(f"{family}-").rsplit("-", 1)
    return make(family, split, int(seed), wordings=wordings)


def _read(point: Point) -> Measured:
    trained = set(training_families())
    rows = [one for one in read_answers(Path(point.records)) if one.family in trained]
    graded, clocks = (
        {
            name: {one.task_id: one for one in rows if one.strategy == name and is_kept(one)}
            for name in (point.strategy, sequential.NAME, PERFECT)
        }
        for is_kept in _ROUNDS
    )
    kept = clocks if point.strategy in BOUNDS else graded
    answers, baseline = kept[point.strategy], kept[sequential.NAME]
    if not answers or answers.keys() != baseline.keys():
        raise InputError(
            f"{point.records} has {len(answers)} answers by {point.strategy} and {len(baseline)} "
            f"by {sequential.NAME}: each prompt needs both",
            hint="write it with `pasta evaluate tasks --records`",
        )
    timed, base = clocks[point.strategy], clocks[sequential.NAME]
    return Measured(point, answers, baseline, timed, base, clocks[PERFECT])


def _check_alike(first: Measured, other: Measured) -> None:
    """Refuse two points that cannot be paired."""
    files = f"{other.point.records} and {first.point.records}"
    has_same = other.answers.keys() == first.answers.keys()
    if not has_same and not (other.is_bound and other.answers.keys() <= first.answers.keys()):
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
