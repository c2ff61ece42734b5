"""Quality of answers, and of their decisions to fork and to sync; intervals over prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pasta_lab.evaluate.records import GradedAnswer
from pasta_lab.evaluate.structure import (
    Counts,
    Structure,
    distance,
    fork_counts,
    sync_counts,
    true_structure,
)
from pasta_lab.tasks.task import Task
from pasta_lm.measure.table import Interval, mean, ratio, to_json

Figures = dict[str, Any]
TIE = 1e-9
"""Grades that differ by less are the same."""


def quality(answers: Sequence[GradedAnswer], baseline: Sequence[GradedAnswer]) -> Figures:
    """Return grade, win rate, counts and well-formedness of answers to the same tasks, in order."""
    pairs = list(zip((a.grade for a in answers), (b.grade for b in baseline), strict=True))
    scores = [_score(ours, theirs) for ours, theirs in pairs]
    return {
        "quality": to_json(mean([a.grade for a in answers])),
        "quality_difference": to_json(mean([ours - theirs for ours, theirs in pairs])),
        "win_rate": to_json(mean(scores)),
        "wins": scores.count(1.0),
        "ties": scores.count(0.5),
        "losses": scores.count(0.0),
        "well_formed": share([a.is_well_formed for a in answers]),
        "limit_hits": sum(a.finish_reason == "length" for a in answers),
    }


def _score(ours: float, theirs: float) -> float:
    return 0.5 if abs(ours - theirs) < TIE else float(ours > theirs)


def decisions(tasks: Sequence[Task], answers: Sequence[GradedAnswer]) -> Figures:
    """Return precision and recall of forks and syncs, and how often a structure was exact."""
    predicted, true = [answer.structure for answer in answers], [true_structure(t) for t in tasks]
    forks = [fork_counts(*both) for both in zip(predicted, true, strict=True)]
    syncs = [sync_counts(*both) for both in zip(predicted, true, strict=True)]
    exact = [ours == wanted for ours, wanted in zip(predicted, true, strict=True)]
    return {
        "fork_precision": to_json(_ratio(forks, lambda c: c.predicted)),
        "fork_recall": to_json(_ratio(forks, lambda c: c.wanted)),
        "sync_precision": to_json(_ratio(syncs, lambda c: c.predicted)),
        "sync_recall": to_json(_ratio(syncs, lambda c: c.wanted)),
        "structure_exact": share(exact),
        **_pairs(tasks, predicted, true),
    }


def _ratio(counts: Sequence[Counts], whole: Callable[[Counts], int]) -> Interval | None:
    return ratio([c.right for c in counts], [whole(c) for c in counts])


def _pairs(tasks: Sequence[Task], predicted: list[Structure], true: list[Structure]) -> Figures:
    """Return the shares of minimal pairs whose structures are exact, and are told apart.

    A pair is told apart if the structure of each answer is nearer to its own true one than to that
    of its pair partner. The same structure on both sides never is.
    """
    sides: Mapping[str, list[tuple[Structure, Structure]]] = defaultdict(list)
    for task, side in zip(tasks, zip(predicted, true, strict=True), strict=True):
        if task.pair is not None:
            sides[task.pair].append(side)
    exact: list[float] = []
    apart: list[float] = []
    for pair in sides.values():
        if len(pair) == 2:
            (ours, own), (theirs, other) = pair
            exact.append(float(ours == own and theirs == other))
            nearer = distance(ours, own) < distance(ours, other)
            apart.append(float(nearer and distance(theirs, other) < distance(theirs, own)))
    return {
        "pair_accuracy": to_json(mean(exact)),
        "pairs_told_apart": to_json(mean(apart)),
        "num_pairs": len(exact),
    }


def share(flags: Sequence[bool]) -> float | None:
    """Return the share that is true; None of nothing."""
    return round(sum(flags) / len(flags), 5) if flags else None
