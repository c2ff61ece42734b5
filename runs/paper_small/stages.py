"""What stage two changed: each model on the way against Pasta-SFT, without gold labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from headline import Answers
from paired import ratio_difference
from plan import FIRST
from table import cell, table

from pasta_lab.evaluate.points import PointAnswers, Speed, pair
from pasta_lab.evaluate.records import task_of
from pasta_lab.evaluate.structure import Structure, fork_counts, true_structure
from pasta_lm.measure.intervals import Interval, as_dict

Figures = dict[str, Any]
SFT = "Pasta-SFT, noisy"
STAGES = {
    SFT: "after SFT",
    f"Pasta-BoN, lambda {FIRST}, tenth": "a tenth of round one",
    f"Pasta-BoN, lambda {FIRST}, round 1": "round one",
    f"Pasta-BoN, lambda {FIRST}": "round two",
}
FIGURES = (
    *("fork_precision", "fork_recall", "sync_precision", "sync_recall"),
    *("quality", "theoretical_speedup", "realised_speedup", "over_fastest_sequential"),
)


def stages(
    points: Mapping[int, Mapping[str, Figures]], seeds: Mapping[int, Answers]
) -> Iterator[str]:
    """Yield the section: the figures of each stage, then their change from Pasta-SFT.

    Args:
        points: By seed, what each point's page says of it, by name.
        seeds: By seed, the answers.
    """
    yield "## What each stage changed, without gold labels"
    yield ""
    names = (key.replace("_", " ") for key in FIGURES)
    rows = ((str(seed), *_figures(points[seed], name)) for seed in seeds for name in STAGES)
    yield from table(("seed", "stage", *names), rows)
    yield ""
    yield "Against Pasta-SFT, paired by prompt: difference of precision, ratio of speedups."
    yield ""
    header = ("seed", "stage", "fork precision", "theoretical", "realised", "both raised")
    later = [name for name in STAGES if name != SFT]
    gains = ((str(seed), *_gains(seeds[seed], name)) for seed in seeds for name in later)
    yield from table(header, gains)


def _figures(points: Mapping[str, Figures], name: str) -> Iterator[str]:
    yield STAGES[name]
    for key in FIGURES:
        yield cell(points[name][key]) if name in points else "not run"


def _gains(answers: Answers, name: str) -> Iterator[str]:
    yield STAGES[name]
    if name not in answers or SFT not in answers:
        yield from ("not run",) * 4
        return
    after, before = answers[name], answers[SFT]
    precision = _precision_gain(after, before)
    paired = [pair(after, before, kind) for kind in Speed]
    speeds = [one and one.speed for one in paired]
    for figure in (precision, *speeds):
        yield cell(figure and as_dict(figure))
    is_raised = precision is not None and precision.low > 0
    is_faster = speeds[0] is not None and speeds[0].low > 1
    yield "yes" if is_raised and is_faster else "**no**"


def _precision_gain(after: PointAnswers, before: PointAnswers) -> Interval | None:
    """Return the fork precision of one point less that of another, over the same prompts."""
    columns: list[list[float]] = []
    for one in (after, before):
        found = [one.answers[name] for name in after.answers]
        counts = [fork_counts(a.structure, _true(a.task_id, a.family)) for a in found]
        columns += [[c.right for c in counts], [c.given for c in counts]]
    return ratio_difference(*columns)


@cache
def _true(task_id: str, family: str) -> Structure:
    return true_structure(task_of(task_id, family, None))
