"""Many models and strategies at once: who is faster, who is better, and which of it is certain.

All points answered the same prompts, so that differences are paired by prompt. Headlines are over
the families that training sees. Speed is theoretical, over all prompts, or realised, over those
that were decoded alone.

Source: PASTA, Figure 4 (quality against speed).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pasta_lm.evaluate.comparison import Comparison, Point
from pasta_lm.evaluate.measured import Measured, Speed, task_of
from pasta_lm.evaluate.pairing import Pairing, Verdict, pair
from pasta_lm.evaluate.quality import as_dict, decisions, quality, smallest_difference
from pasta_lm.evaluate.speed import realised, speed
from pasta_lm.evaluate.yardsticks import fastest_sequential, found_beside, of_perfect, over
from pasta_lm.tasks.registry import training_families
from pasta_lm.tasks.task import Task

Figures = dict[str, Any]

USUAL_LENGTH = (0.95, 1.05)
"""Lengths against the baseline's outside of which a point is flagged: brevity looks like speed."""

DECISIONS = ("fork_precision", "fork_recall", "sync_precision", "sync_recall")


def report(comparison: Comparison, measured: Sequence[Measured]) -> Figures:
    """Return the object that ``pasta evaluate frontier --json`` prints."""
    by_name = {one.point.name: one for one in measured}
    fastest = fastest_sequential(measured)
    tasks = _tasks(measured, comparison.wordings)
    points = [
        {
            **_about(one.point),
            "is_bound": one.is_bound,
            **_figures(one, tasks),
            "of_perfect_forks": of_perfect(one),
            "over_fastest_sequential": over(fastest, one),
        }
        for one in measured
    ]
    for kind in Speed:
        on_it = set(pareto([point for point in points if not point["is_bound"]], kind))
        for point in points:
            point.setdefault("on_frontier", {})[kind.value] = point["name"] in on_it
    missing = [point for point in comparison.points if point.name not in by_name]
    answering = [one for one in measured if not one.is_bound]
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
        "step_costs": found_beside(comparison.step_costs),
        "replays": found_beside(comparison.replays),
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
    Of several with the same verdict it is the one whose grade is surest to be higher.
    """
    ours = [one for one in measured if one.point.method == comparison.ours]
    for rival in measured:
        if rival.point.method == comparison.ours:
            continue
        for kind in Speed:
            pairings = [(one, found) for one in ours if (found := pair(one, rival, kind))]
            if pairings:
                yield _best(rival, kind, pairings)


def _best(rival: Measured, kind: Speed, pairings: Sequence[tuple[Measured, Pairing]]) -> Figures:
    order = list(Verdict)
    one, found = min(pairings, key=lambda p: (order.index(p[1].verdict), -p[1].quality.low))
    return {
        "rival": rival.point.name,
        "speed": kind.value,
        "verdict": found.verdict.value,
        "by": one.point.name,
        "quality_difference": as_dict(found.quality),
        "speed_ratio": as_dict(found.speed),
    }


def _about(point: Point) -> Figures:
    kept = ("name", "method", "label", "model", "strategy", "records")
    return {key: getattr(point, key) for key in kept}


def _tasks(measured: Sequence[Measured], wordings: str | None) -> dict[str, Task]:
    """Draw all tasks that were answered again, each once."""
    found: dict[str, Task] = {}
    for one in measured:
        for name, answered in one.answers.items():
            if name not in found:
                found[name] = task_of(name, answered.family, wordings)
    return found


def _figures(one: Measured, tasks: Mapping[str, Task]) -> Figures:
    kinds = {answer.kind or "not said" for answer in one.answers.values()}
    ids = list(one.answers)
    figures = over_prompts(one, ids)
    low, high = USUAL_LENGTH
    chosen = decisions([tasks[name] for name in ids], list(one.answers.values()))
    return {
        "kind": ", ".join(sorted(kinds)),
        **figures,
        **{name: chosen[name] for name in DECISIONS},
        "is_length_unusual": not low <= figures["length_ratio"]["mean"] <= high,
        "families": {
            family: over_prompts(one, [n for n in ids if one.answers[n].family == family])
            for family in training_families()
        },
    }


def over_prompts(one: Measured, ids: Sequence[str]) -> Figures:
    """Return the figures of a point over some prompts."""
    answers, baseline = ([side[name] for name in ids] for side in (one.answers, one.baseline))
    both = [name for name in ids if name in one.timed and name in one.timed_baseline]
    clocks = ([side[name] for name in both] for side in (one.timed, one.timed_baseline))
    forks = [bool(answer.structure.forked or answer.structure.num_stray) for answer in answers]
    graded = quality(answers, baseline)
    return {
        "num_prompts": len(answers),
        "answers_forked": sum(forks) / len(forks) if forks else None,
        **(dict.fromkeys(graded) if one.is_bound else graded),
        "smallest_difference": None if one.is_bound else smallest_difference(answers, baseline),
        **speed(answers, baseline),
        **({"theoretical_speedup": None} if one.is_guessed else {}),
        **realised(*clocks),
    }
