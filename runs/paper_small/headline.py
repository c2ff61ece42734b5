"""The headline over all training seeds: for each rival's point, the best point that we have.

Differences are paired by prompt, and averaged over the seeds before their interval is drawn. One
point of ours has to do for all seeds, and a verdict over seeds is the least of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp
from statistics import fmean

from plan import Plan
from table import cell, table

from pasta_lm.evaluate.comparison import read_comparison
from pasta_lm.evaluate.intervals import Interval, mean
from pasta_lm.evaluate.measured import Measured, Speed, measure
from pasta_lm.evaluate.pairing import Pairing, Verdict, pair
from pasta_lm.evaluate.quality import as_dict

RIVALS = ("APAR-BoN", "rule-pasta-BoN", "SoT")
"""Methods that the headline is against, each in its best form."""
OURS = "Pasta-BoN"
ORDER = tuple(Verdict)

Answers = Mapping[str, Measured]
"""The points of one seed's page, by name."""


def answers_of(plan: Plan, page: str) -> Answers:
    """Read the answers behind a page; none if there is no page."""
    results = plan.options.out / "results"
    if not (results / f"{page}.json").exists():
        return {}
    return {one.point.name: one for one in measure(read_comparison(results / f"{page}.toml"))}


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
    chosen = _best(seeds, ours, rival, kind)
    by, found = chosen or ("-", {})
    yield f"! {rival}" if rival in flagged else rival
    yield kind.value
    yield f"! {by}" if by in flagged else by
    each = [
        found[seed][1].verdict.value if seed in found else _lack(answers, ours, rival)
        for seed, answers in seeds.items()
    ]
    yield from each
    whole = pooled([both for both, _ in found.values()], kind)
    yield cell(whole and as_dict(whole.quality))
    yield cell(whole and as_dict(whole.speed))
    yield least(each)


def _lack(answers: Answers, ours: Sequence[str], rival: str) -> str:
    is_there = rival in answers and any(name in answers for name in ours)
    return "not timed" if is_there else "not run"


Found = dict[int, tuple[tuple[Measured, Measured], Pairing]]


def _best(
    seeds: Mapping[int, Answers], ours: Sequence[str], rival: str, kind: Speed
) -> tuple[str, Found] | None:
    """Return the point of ours with the best verdict over most seeds, and its pairings."""
    chances: list[tuple[tuple[float, ...], str, Found]] = []
    for name in ours:
        found: Found = {}
        for seed, answers in seeds.items():
            if name in answers and rival in answers:
                both = answers[name], answers[rival]
                if pairing := pair(*both, kind):
                    found[seed] = both, pairing
        whole = pooled([both for both, _ in found.values()], kind)
        if whole is not None:
            worst = max(ORDER.index(pairing.verdict) for _, pairing in found.values())
            chances.append(((-len(found), worst, -whole.quality.low), name, found))
    if not chances:
        return None
    _, name, found = min(chances, key=lambda chance: chance[0])
    return name, found


def pooled(pairs: Sequence[tuple[Measured, Measured]], kind: Speed) -> Pairing | None:
    """Return how ours and a rival compare over seeds: each prompt counts by its mean over them."""
    grades = [
        {name: one.answers[name].grade - rival.answers[name].grade for name in one.answers}
        for one, rival in pairs
    ]
    speeds = [_gains(one, rival, kind) for one, rival in pairs]
    quality, gain = _mean_of(grades), _mean_of(speeds)
    if quality is None or gain is None:
        return None
    return Pairing(quality, Interval(exp(gain.mean), exp(gain.low), exp(gain.high)))


def _gains(one: Measured, rival: Measured, kind: Speed) -> dict[str, float]:
    fast, slow = one.log_speed(kind), rival.log_speed(kind)
    return {name: fast[name] - slow[name] for name in fast if name in slow}


def _mean_of(by_seed: Sequence[Mapping[str, float]]) -> Interval | None:
    """Return the mean over prompts, each averaged over the seeds first."""
    if not by_seed:
        return None
    names = [name for name in by_seed[0] if all(name in one for one in by_seed)]
    return mean([fmean(one[name] for one in by_seed) for name in names])


def least(verdicts: Sequence[str]) -> str:
    """Return the least verdict of several seeds, and how many there are if some lack."""
    words = [verdict.value for verdict in ORDER]
    known = [words.index(one) for one in verdicts if one in words]
    lacks = [one for one in verdicts if one not in words]
    worst = words[max(known)] if known else lacks[0]
    return f"{worst} ({len(known)} of {len(verdicts)} seeds)" if lacks else worst
