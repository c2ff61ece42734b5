"""Further rounds of stage two: the area that their points cover, over training compute."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

from headline import Answers
from paired import of_means
from plan import FIRST, Plan
from table import cell, table

from pasta_lab.evaluate.points import PointAnswers, Speed
from pasta_lm.measure.intervals import Interval, as_dict

NUM_ROUNDS = 4


def rounds(plan: Plan, points: Mapping[str, dict[str, Any]], answers: Answers) -> Iterator[str]:
    """Yield the section, a row for each number of rounds.

    Args:
        plan: Where the run lies.
        points: What the page of the ablations says of each point, by name.
        answers: Behind that page.
    """
    yield "## Rounds: hypervolume over training compute"
    yield ""
    yield "The area of quality above 0 and theoretical speedup above 1 that the rounds so far"
    yield "cover, its interval over prompts; compute as optimiser steps: all are sampled alike."
    yield ""
    run = plan.options.out / f"seed-0/pasta-bon-{FIRST}"
    steps, so_far, rows = 0, [], []
    for number in range(1, NUM_ROUNDS + 1):
        name = f"rounds: {number}"
        log = run / f"round-{number}" / "log.jsonl"
        if name not in answers or not log.exists():
            rows.append([str(number), *["not run"] * 4])
            continue
        steps += num_steps(log)
        so_far.append(answers[name])
        figures = [cell(points[name][key]) for key in ("quality", "theoretical_speedup")]
        area = as_dict(area_covered(so_far))
        rows.append([str(number), str(steps), *figures, cell(area)])
    yield from table(("rounds", "steps", "quality", "theoretical speedup", "hypervolume"), rows)


def area_covered(points: Sequence[PointAnswers]) -> Interval | None:
    """Return the hypervolume of points that answered the same prompts, paired by prompt."""
    columns: list[list[float]] = []
    for one in points:
        speeds = one.log_speed(Speed.THEORETICAL)
        columns += [list(speeds.values()), [one.answers[name].grade for name in speeds]]
    return of_means(columns, lambda *of: hypervolume(zip(map(exp, of[::2]), of[1::2], strict=True)))


def num_steps(log: Path) -> int:
    """Return how many optimiser steps a training has made by its log."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return max((json.loads(line).get("step", 0) for line in lines), default=0)


def hypervolume(places: Iterable[tuple[float, float]]) -> float:
    """Return the area that points of speedup and quality cover, from speedup 1 and quality 0 on."""
    area = covered = 0.0
    for fast, good in sorted(places, reverse=True):
        area += max(good - covered, 0) * max(fast - 1, 0)
        covered = max(covered, good)
    return area
