"""Many models and strategies compared: the frontier, verdicts, reference points for speedups.

Headlines are over the families that training sees. Theoretical speedup is over all prompts,
realised speedup over the timed ones.

Source: PASTA, Figure 4 (quality against speed).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from pasta_lab.evaluate.points import (
    Comparison,
    Pairing,
    Point,
    PointAnswers,
    Speed,
    Verdict,
    pair,
    speed_ratio,
)
from pasta_lab.evaluate.quality import decisions, quality, smallest_difference
from pasta_lab.evaluate.records import task_of
from pasta_lab.tasks.registry import training_families
from pasta_lab.tasks.task import Task
from pasta_lm.measure.intervals import as_dict, geometric_mean
from pasta_lm.measure.speed import num_failed, realised, speed
from pasta_lm.measure.table import to_json
from pasta_lm.strategies.requests import EXACT_SEQUENTIAL

Figures = dict[str, Any]

USUAL_LENGTH_RATIO = (0.95, 1.05)
"""A point outside of it is flagged: shorter answers look faster."""
DECISIONS = ("fork_precision", "fork_recall", "sync_precision", "sync_recall")
POINT_KEYS = ("name", "method", "label", "model", "strategy", "records")


def report(comparison: Comparison, read: Sequence[PointAnswers]) -> Figures:
    """Return the object that ``pasta-lab evaluate frontier --json`` prints."""
    fastest = fastest_sequential(read)
    points = _points(comparison, read, fastest)
    names = {one.point.name for one in read}
    missing = [point for point in comparison.points if point.name not in names]
    answering = [one for one in read if not one.is_bound]
    return {
        "title": comparison.title,
        "ours": comparison.ours,
        "baseline": comparison.baseline,
        "split": comparison.split,
        "num_prompts": len(answering[0].answers) if answering else 0,
        "kinds": sorted({point["kind"] for point in points if not point["is_bound"]}),
        "points": points,
        "comparisons": list(compare(comparison, answering)),
        "fastest_sequential": fastest and fastest.point.name,
        "not_run": [{**_about(point), "command": comparison.command(point)} for point in missing],
    }


def _points(
    comparison: Comparison, read: Sequence[PointAnswers], fastest: PointAnswers | None
) -> list[Figures]:
    tasks: dict[str, Task] = {}
    for one in read:
        for name, answer in one.answers.items():
            if name not in tasks:
                tasks[name] = task_of(name, answer.family, comparison.wordings)
    points = [
        {
            **_about(one.point),
            "is_bound": one.is_bound,
            **_figures(one, tasks),
            "of_perfect_forks": fraction_of_perfect_forks(one),
            "over_fastest_sequential": speedup_over_fastest_sequential(one, fastest),
        }
        for one in read
    ]
    on_it = {kind: pareto([p for p in points if not p["is_bound"]], kind) for kind in Speed}
    for point in points:
        point["on_frontier"] = {kind.value: point["name"] in on_it[kind] for kind in Speed}
    return points


def pareto(points: Sequence[Figures], kind: Speed) -> list[str]:
    """Return the names of the points that no other beats on both axes, slowest first."""
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


def compare(comparison: Comparison, read: Sequence[PointAnswers]) -> Iterator[Figures]:
    """Yield for each point of another method, and each kind of speedup, our best pairing.

    The best has the best verdict; of several, the one whose grade is surest to be higher.
    """
    ours = [one for one in read if one.point.method == comparison.ours]
    for other in read:
        if other.point.method == comparison.ours:
            continue
        for kind in Speed:
            pairings = [(one, found) for one in ours if (found := pair(one, other, kind))]
            if pairings:
                yield _best(other, kind, pairings)


def _best(
    other: PointAnswers, kind: Speed, pairings: Sequence[tuple[PointAnswers, Pairing]]
) -> Figures:
    order = list(Verdict)
    one, found = min(pairings, key=lambda p: (order.index(p[1].verdict), -p[1].quality.low))
    return {
        "rival": other.point.name,
        "speed": kind.value,
        "verdict": found.verdict.value,
        "by": one.point.name,
        "quality_difference": as_dict(found.quality),
        "speed_ratio": as_dict(found.speed),
    }


def _about(point: Point) -> Figures:
    return {key: getattr(point, key) for key in POINT_KEYS}


def _figures(one: PointAnswers, tasks: Mapping[str, Task]) -> Figures:
    ids = list(one.answers)
    found = over_prompts(one, ids)
    low, high = USUAL_LENGTH_RATIO
    chosen = decisions([tasks[name] for name in ids], list(one.answers.values()))
    return {
        "kind": ", ".join(sorted({a.kind or "not said" for a in one.answers.values()})),
        **found,
        **{name: chosen[name] for name in DECISIONS},
        "is_length_unusual": not low <= found["length_ratio"]["mean"] <= high,
        "families": {
            family: over_prompts(one, [n for n in ids if one.answers[n].family == family])
            for family in training_families()
        },
    }


def over_prompts(one: PointAnswers, ids: Sequence[str]) -> Figures:
    """Return the figures of a point over some prompts."""
    answers, baseline = ([side[name] for name in ids] for side in (one.answers, one.baseline))
    both = [name for name in ids if name in one.timed and name in one.timed_baseline]
    clocks = ([side[name] for name in both] for side in (one.timed, one.timed_baseline))
    forks = [bool(answer.structure.forked or answer.structure.num_stray) for answer in answers]
    graded = quality(answers, baseline)
    return {
        "num_prompts": len(answers),
        "num_failed": num_failed(answers),
        "answers_forked": sum(forks) / len(forks) if forks else None,
        **(dict.fromkeys(graded) if one.is_bound else graded),
        "smallest_difference": None if one.is_bound else smallest_difference(answers, baseline),
        **to_json(speed(answers, baseline)),
        **({"theoretical_speedup": None} if one.is_speculative else {}),
        **to_json(realised(*clocks)),
    }


# Reference points for speedups: the fastest sequential decoding, gold forks.


def fastest_sequential(read: Sequence[PointAnswers]) -> PointAnswers | None:
    """Return the point with sequential tokens and the shortest clocks; None if none was timed."""
    logs = [
        (one.log_speed(Speed.REALISED), one)
        for one in read
        if one.point.strategy in EXACT_SEQUENTIAL
    ]
    timed = [(fmean(by_task.values()), one) for by_task, one in logs if by_task]
    return max(timed, key=lambda one: one[0])[1] if timed else None


def speedup_over_fastest_sequential(
    one: PointAnswers, fastest: PointAnswers | None
) -> dict[str, float] | None:
    """Return a point's realised speed over that of the fastest sequential decoding."""
    return None if fastest is None else as_dict(speed_ratio(one, fastest, Speed.REALISED))


def fraction_of_perfect_forks(one: PointAnswers) -> Figures | None:
    """Return which fraction of the speed of perfect forks a point has, over its timed prompts.

    None if nothing was replayed in turn with the point.
    """
    both = [name for name in one.timed if name in one.perfect]
    if not both or one.is_bound:
        return None
    pairs = [(one.timed[name], one.perfect[name]) for name in both]
    paths = [] if one.is_speculative else [a.theoretical_speedup(b) for a, b in pairs]
    clocks = [ratio for a, b in pairs if (ratio := a.realised_speedup(b))]
    return {
        "num_prompts": len(both),
        Speed.THEORETICAL.value: as_dict(geometric_mean(paths)),
        Speed.REALISED.value: as_dict(geometric_mean(clocks)),
    }
