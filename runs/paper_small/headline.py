"""The headline over all training seeds: for each rival's point, the best point that we have.

Differences are paired by prompt, and averaged over the seeds before their interval is drawn. One
point of ours has to do for all seeds, and a verdict over seeds is the least of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plan import Plan
from table import cell, table

from pasta_lm.evaluate.comparison import read_comparison
from pasta_lm.evaluate.intervals import as_dict
from pasta_lm.evaluate.points import (
    Pairing,
    PointAnswers,
    Speed,
    Verdict,
    pair,
    pair_over,
    read_points,
)

RIVALS = ("APAR-BoN", "rule-pasta-BoN", "SoT")
"""Methods that the headline is against, each in its best form."""
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
    """Yield the section, a row for each rival's point and each sense of speed."""
    yield "## Headline, from the noisy set: Pasta-BoN against each rival's points"
    yield ""
    yield "Paired by prompt, 95 % intervals, averaged over the seeds that were run; a verdict over"
    yield "all seeds is the least of theirs, by one point of ours. So many comparisons are not"
    yield "corrected for one another. `!`: length outside 0.95 to 1.05 of the baseline's."
    yield ""
    points = [one for one in plan.pages["seed-0"].points if one.get("label") != "gold"]
    rivals = [one["name"] for one in points if one["method"] in RIVALS]
    ours = [one["name"] for one in points if one["method"] == OURS]
    rows = (_row(seeds, ours, rival, kind, flagged) for rival in rivals for kind in Speed)
    figures = ("grade less theirs", "speed / theirs")
    each = (f"seed {seed}" for seed in seeds)
    yield from table(("rival's point", "speed", "by", *each, *figures, "all seeds"), rows)


def _row(
    seeds: Mapping[int, Answers], ours: Sequence[str], rival: str, kind: Speed, flagged: set[str]
) -> Iterator[str]:
    chance = _best(seeds, ours, rival, kind)
    yield f"! {rival}" if rival in flagged else rival
    yield kind.value
    by = chance.name if chance else "-"
    yield f"! {by}" if by in flagged else by
    found = chance.by_seed if chance else {}
    each = [
        found[seed].verdict.value if seed in found else _lack(answers, ours, rival)
        for seed, answers in seeds.items()
    ]
    yield from each
    yield cell(chance and as_dict(chance.whole.quality))
    yield cell(chance and as_dict(chance.whole.speed))
    yield least(each)


def _lack(answers: Answers, ours: Sequence[str], rival: str) -> str:
    is_there = rival in answers and any(name in answers for name in ours)
    return "not timed" if is_there else "not run"


@dataclass(frozen=True, slots=True)
class Chance:
    """One point of ours against a rival's: by seed, and over the seeds that have both."""

    name: str
    by_seed: Mapping[int, Pairing]
    whole: Pairing

    @property
    def rank(self) -> tuple[float, ...]:
        """Return what is smallest for the best: most seeds, best verdict, surest grade."""
        worst = max(ORDER.index(pairing.verdict) for pairing in self.by_seed.values())
        return -len(self.by_seed), worst, -self.whole.quality.low


def _best(
    seeds: Mapping[int, Answers], ours: Sequence[str], rival: str, kind: Speed
) -> Chance | None:
    """Return the point of ours with the best verdict over most seeds."""
    chances = []
    for name in ours:
        both = {
            seed: (answers[name], answers[rival])
            for seed, answers in seeds.items()
            if name in answers and rival in answers
        }
        by_seed = {seed: found for seed, one in both.items() if (found := pair(*one, kind))}
        if whole := pair_over([both[seed] for seed in by_seed], kind):
            chances.append(Chance(name, by_seed, whole))
    return min(chances, key=lambda chance: chance.rank, default=None)


def least(verdicts: Sequence[str]) -> str:
    """Return the least verdict of several seeds, and how many there are if some lack."""
    words = [verdict.value for verdict in ORDER]
    known = [words.index(one) for one in verdicts if one in words]
    lacks = [one for one in verdicts if one not in words]
    worst = words[max(known)] if known else lacks[0]
    return f"{worst} ({len(known)} of {len(verdicts)} seeds)" if lacks else worst
