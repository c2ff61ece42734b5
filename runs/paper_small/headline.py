"""The main comparison over all training seeds: the best PASTA point against each other method.

Differences are paired by prompt, and averaged over the seeds before their interval is drawn. The
same PASTA point is compared in all seeds, and a verdict over seeds is the worst of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plan import Plan
from table import cell, table

from pasta_lab.evaluate.points import (
    Pairing,
    PointAnswers,
    Speed,
    Verdict,
    pair,
    pair_over,
    read_comparison,
    read_points,
)
from pasta_lm.measure.intervals import as_dict

BASELINES = ("APAR-BoN", "rule-pasta-BoN", "SoT")
"""Methods that PASTA is compared with, each in its best form."""
OURS = "Pasta-BoN"
ORDER = tuple(Verdict)

Answers = Mapping[str, PointAnswers]
"""The points of one seed's page, by name."""


def answers_of(plan: Plan, page: str) -> Answers:
    """Read the answers behind a page; none if there is no page."""
    results = plan.options.out / "results"
    if not (results / f"{page}.json").exists():
        return {}
    return {one.point.name: one for one in read_points(read_comparison(results / f"{page}.toml"))}


def headline(plan: Plan, seeds: Mapping[int, Answers], flagged: set[str]) -> Iterator[str]:
    """Yield the section, a row for each point of another method and each kind of speedup."""
    yield "## Pasta-BoN against the points of the other methods, from the noisy set"
    yield ""
    yield "Paired by prompt, 95 % intervals, averaged over the seeds that were run; the verdict"
    yield "over all seeds is the worst of theirs, by one point of ours. The comparisons are not"
    yield "corrected for their number. `!`: length outside 0.95 to 1.05 of the baseline's."
    yield ""
    points = [one for one in plan.pages["seed-0"].points if one.get("label") != "gold"]
    others = [one["name"] for one in points if one["method"] in BASELINES]
    ours = [one["name"] for one in points if one["method"] == OURS]
    rows = (_row(seeds, ours, other, kind, flagged) for other in others for kind in Speed)
    figures = ("grade less theirs", "speed / theirs")
    each = (f"seed {seed}" for seed in seeds)
    yield from table(("point", "speed", "by", *each, *figures, "all seeds"), rows)


def _row(
    seeds: Mapping[int, Answers], ours: Sequence[str], other: str, kind: Speed, flagged: set[str]
) -> Iterator[str]:
    candidate = _best(seeds, ours, other, kind)
    yield f"! {other}" if other in flagged else other
    yield kind.value
    by = candidate.name if candidate else "-"
    yield f"! {by}" if by in flagged else by
    found = candidate.by_seed if candidate else {}
    each = [
        found[seed].verdict.value if seed in found else _lack(answers, ours, other)
        for seed, answers in seeds.items()
    ]
    yield from each
    yield cell(candidate and as_dict(candidate.whole.quality))
    yield cell(candidate and as_dict(candidate.whole.speed))
    yield worst(each)


def _lack(answers: Answers, ours: Sequence[str], other: str) -> str:
    is_there = other in answers and any(name in answers for name in ours)
    return "not timed" if is_there else "not run"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A PASTA point against another: by seed, and over the seeds that have both."""

    name: str
    by_seed: Mapping[int, Pairing]
    whole: Pairing

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key, smallest for the best: most seeds, best verdict, highest lower bound."""
        verdict = max(ORDER.index(pairing.verdict) for pairing in self.by_seed.values())
        return -len(self.by_seed), verdict, -self.whole.quality.low


def _best(
    seeds: Mapping[int, Answers], ours: Sequence[str], other: str, kind: Speed
) -> Candidate | None:
    """Return the PASTA point with the best verdict over most seeds."""
    candidates = []
    for name in ours:
        both = {
            seed: (answers[name], answers[other])
            for seed, answers in seeds.items()
            if name in answers and other in answers
        }
        by_seed = {seed: found for seed, one in both.items() if (found := pair(*one, kind))}
        if whole := pair_over([both[seed] for seed in by_seed], kind):
            candidates.append(Candidate(name, by_seed, whole))
    return min(candidates, key=lambda candidate: candidate.rank, default=None)


def worst(verdicts: Sequence[str]) -> str:
    """Return the worst verdict of several seeds, and how many there are if some lack."""
    words = [verdict.value for verdict in ORDER]
    known = [words.index(one) for one in verdicts if one in words]
    lacks = [one for one in verdicts if one not in words]
    verdict = words[max(known)] if known else lacks[0]
    return f"{verdict} ({len(known)} of {len(verdicts)} seeds)" if lacks else verdict
