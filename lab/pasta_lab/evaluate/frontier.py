"""Many models and strategies compared: figures, the frontier, verdicts.

Headlines are over the families that training sees. Theoretical speedup is over all prompts,
realised speedup over the timed ones.

Source: PASTA, Figure 4 (quality against speed).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pasta_lab.evaluate.points import Comparison, Pairing, Point, PointAnswers, Speed, Verdict, pair
from pasta_lab.evaluate.quality import decisions, quality
from pasta_lab.evaluate.records import task_of
from pasta_lab.tasks.registry import training_families
from pasta_lm.measure.speed import num_failed, realised, speed
from pasta_lm.measure.table import to_json

Figures = dict[str, Any]

USUAL_LENGTH_RATIO = (0.95, 1.05)
"""A point outside of it is flagged: shorter answers look faster."""
DECISIONS = ("fork_precision", "fork_recall", "sync_precision", "sync_recall")
POINT_KEYS = ("name", "method", "label", "model", "strategy", "records")


def report(comparison: Comparison, read: Sequence[PointAnswers]) -> Figures:
    """Return the object that ``pasta-lab evaluate frontier --json`` prints."""
    points = [{**_about(entry.point), **_figures(entry, comparison.wordings)} for entry in read]
    on_it = {kind: pareto(points, kind) for kind in Speed}
    for point in points:
        point["on_frontier"] = {kind.value: point["name"] in on_it[kind] for kind in Speed}
    names = {entry.point.name for entry in read}
    missing = [point for point in comparison.points if point.name not in names]
    return {
        "title": comparison.title,
        "ours": comparison.ours,
        "baseline": comparison.baseline,
        "split": comparison.split,
        "num_prompts": len(read[0].answers) if read else 0,
        "kinds": sorted({point["kind"] for point in points}),
        "points": points,
        "comparisons": list(compare(comparison, read)),
        "not_run": [{**_about(point), "command": comparison.command(point)} for point in missing],
    }


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
    ours = [entry for entry in read if entry.point.method == comparison.ours]
    for other in read:
        if other.point.method == comparison.ours:
            continue
        for kind in Speed:
            pairings = [(entry, pairing) for entry in ours if (pairing := pair(entry, other, kind))]
            if pairings:
                yield _best(other, kind, pairings)


def _best(
    other: PointAnswers, kind: Speed, pairings: Sequence[tuple[PointAnswers, Pairing]]
) -> Figures:
    order = list(Verdict)
    best, pairing = min(pairings, key=lambda p: (order.index(p[1].verdict), -p[1].quality.low))
    return {
        "rival": other.point.name,
        "speed": kind.value,
        "verdict": pairing.verdict.value,
        "by": best.point.name,
        "quality_difference": to_json(pairing.quality),
        "speed_ratio": to_json(pairing.speed),
    }


def _about(point: Point) -> Figures:
    return {key: getattr(point, key) for key in POINT_KEYS}


def _figures(entry: PointAnswers, wordings: str | None) -> Figures:
    ids, answers = list(entry.answers), list(entry.answers.values())
    tasks = [task_of(name, answer.family, wordings) for name, answer in entry.answers.items()]
    chosen = decisions(tasks, answers)
    figures = over_prompts(entry, ids)
    low, high = USUAL_LENGTH_RATIO
    return {
        "kind": ", ".join(sorted({answer.kind or "not said" for answer in answers})),
        **figures,
        **{name: chosen[name] for name in DECISIONS},
        "is_length_unusual": not low <= figures["length_ratio"]["mean"] <= high,
        "families": {
            family: over_prompts(entry, [n for n in ids if entry.answers[n].family == family])
            for family in training_families()
        },
    }


def over_prompts(entry: PointAnswers, ids: Sequence[str]) -> Figures:
    """Return the figures of a point over some prompts."""
    answers, baseline = ([side[name] for name in ids] for side in (entry.answers, entry.baseline))
    both = [name for name in ids if name in entry.timed and name in entry.timed_baseline]
    clocks = ([side[name] for name in both] for side in (entry.timed, entry.timed_baseline))
    forks = [bool(answer.structure.forked or answer.structure.num_stray) for answer in answers]
    return {
        "num_prompts": len(answers),
        "num_failed": num_failed(answers),
        "answers_forked": sum(forks) / len(forks) if forks else None,
        **quality(answers, baseline),
        **to_json(speed(answers, baseline)),
        **({"theoretical_speedup": None} if entry.is_speculative else {}),
        **to_json(realised(*clocks)),
    }
