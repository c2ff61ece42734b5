"""From rollouts to pairs: every sample gets a score, the best and the worst are a pair.

Source: PASTA, section 4: score = theoretical speedup + lambda * quality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from math import isinf
from statistics import fmean
from typing import NamedTuple

from pasta_lm.data.judge import Comparison, Judge, Verdict, both_orders, smoothed_ratio
from pasta_lm.data.pairs import PreferencePair
from pasta_lm.data.rollouts import Rollout, Sample
from pasta_lm.language.document import parse

TIE = 1e-9
"""Scores that differ by less are the same."""


class Efficiency(StrEnum):
    """What stands for speed in a score."""

    SPEEDUP = "speedup"
    """Theoretical speedup: tokens of the baseline's answer / critical path; brevity is speed."""
    PARALLELISM = "parallelism"
    """Content tokens / critical path: length is no loss of speed."""
    HARMONIC = "harmonic"
    """The harmonic mean of the two, which neither brevity nor length alone can raise far."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How samples are scored.

    Attributes:
        quality_weight: The paper's lambda; infinity: quality alone.
        efficiency: What stands for speed.
        smoothing: See ``smoothed_ratio``.
    """

    quality_weight: float
    efficiency: Efficiency = Efficiency.SPEEDUP
    smoothing: float = 1.0

    def score(self, efficiency: float, quality: float) -> float:
        """Return what a sample is worth."""
        if isinf(self.quality_weight):
            return quality
        return efficiency + self.quality_weight * quality


class Scored(NamedTuple):
    """A sample with its score and what that is made of."""

    sample: Sample
    efficiency: float
    quality: float
    score: float


@dataclass(frozen=True, slots=True)
class Selection:
    """The pairs of some rollouts, and what gave none.

    Attributes:
        pairs: In the order of the rollouts.
        scored: By id, all usable samples of each rollout.
        num_equal: Prompts whose best and worst sample are worth the same.
        num_lacking: Prompts with fewer than two usable samples.
        num_unusable: Samples that were left out, see ``is_usable``.
    """

    pairs: list[PreferencePair]
    scored: dict[str, list[Scored]]
    num_equal: int
    num_lacking: int
    num_unusable: int

    def figures(self) -> dict[str, float]:
        """Return counts, and means over prompts of what was drawn and of what was picked."""
        drawn = [group for group in self.scored.values() if group]
        return {
            "num_prompts": len(self.scored),
            "num_pairs": len(self.pairs),
            "num_equal": self.num_equal,
            "num_lacking": self.num_lacking,
            "num_unusable": self.num_unusable,
            "efficiency": _mean([fmean(one.efficiency for one in group) for group in drawn]),
            "quality": _mean([fmean(one.quality for one in group) for group in drawn]),
            "score": _mean([fmean(one.score for one in group) for group in drawn]),
            "score_chosen": _mean([pair.score_chosen for pair in self.pairs]),
            "score_rejected": _mean([pair.score_rejected for pair in self.pairs]),
        }


def efficiency(kind: Efficiency, sample: Sample, baseline: Sample) -> float:
    """Return how fast a sample is.

    The baseline's tokens are those that it fed one after another: its own critical path.

    Args:
        kind: In which sense.
        sample: An answer.
        baseline: The baseline's sequential answer to the same prompt.

    Source: PASTA, section 5.1 (theoretical speedup, parallelism), section 4 (the harmonic mean).
    """
    path = max(sample.critical_path, 1)
    speedup = max(baseline.critical_path, 1) / path
    parallelism = sample.num_content_tokens / path
    if kind is Efficiency.SPEEDUP:
        return speedup
    if kind is Efficiency.PARALLELISM:
        return parallelism
    return 2 * speedup * parallelism / (speedup + parallelism)


def is_usable(sample: Sample) -> bool:
    """Tell whether an answer can be learned: it ended by itself, is well-formed and says something.

    Of an answer that a limit cut the model never chose the end, which training would teach.
    """
    is_well_formed = sample.finish_reason == "stop" and not sample.num_illegal
    return is_well_formed and bool(sample.text.strip())


def select_pairs(
    rollouts: Sequence[Rollout], originals: Mapping[str, str], judge: Judge, scoring: Scoring
) -> Selection:
    """Score all samples; return the best and the worst of each prompt.

    Among equals the one that was drawn first is taken, which favours nothing.

    Args:
        rollouts: Samples and the baseline's answers.
        originals: By id, the answer that came with the prompt; a prompt may have none.
        judge: Who compares.
        scoring: How.
    """
    scored = _score(rollouts, originals, judge, scoring)
    pairs: list[PreferencePair] = []
    num_equal = num_lacking = 0
    for rollout in rollouts:
        group = scored[rollout.id]
        if len(group) < 2:
            num_lacking += 1
            continue
        best, worst = max(group, key=_worth), min(group, key=_worth)
        if best.score - worst.score < TIE:
            num_equal += 1
        else:
            pairs.append(_pair(rollout, best, worst))
    num_drawn = sum(len(rollout.samples) for rollout in rollouts)
    num_usable = sum(map(len, scored.values()))
    return Selection(pairs, scored, num_equal, num_lacking, num_drawn - num_usable)


def _score(
    rollouts: Sequence[Rollout], originals: Mapping[str, str], judge: Judge, scoring: Scoring
) -> dict[str, list[Scored]]:
    """Return the usable samples of each rollout with their scores; the judge is asked once."""
    usable = [[one for one in rollout.samples if is_usable(one)] for rollout in rollouts]
    asked = [
        [_comparisons(rollout, sample, originals.get(rollout.id)) for sample in samples]
        for rollout, samples in zip(rollouts, usable, strict=True)
    ]
    flat = [one for group in asked for comparisons in group for one in comparisons]
    verdicts = iter(judge.compare(flat))
    scored: dict[str, list[Scored]] = {}
    for rollout, samples, group in zip(rollouts, usable, asked, strict=True):
        given = [list(islice(verdicts, len(comparisons))) for comparisons in group]
        scored[rollout.id] = [
            _scored(sample, rollout.baseline, said, scoring)
            for sample, said in zip(samples, given, strict=True)
        ]
    return scored


def _comparisons(rollout: Rollout, sample: Sample, original: str | None) -> list[Comparison]:
    opponents = [rollout.baseline.text] + ([] if original is None else [original])
    return [
        comparison
        for opponent in opponents
        for comparison in both_orders(rollout.id, rollout.prompt, sample.text, opponent)
    ]


def _scored(
    sample: Sample, baseline: Sample, verdicts: Sequence[Verdict], scoring: Scoring
) -> Scored:
    speed = efficiency(scoring.efficiency, sample, baseline)
    quality = smoothed_ratio(verdicts, scoring.smoothing)
    return Scored(sample, speed, quality, scoring.score(speed, quality))


def _worth(scored: Scored) -> float:
    return scored.score


def _pair(rollout: Rollout, best: Scored, worst: Scored) -> PreferencePair:
    sides = (("chosen", best), ("rejected", worst))
    parts = {f"efficiency_{side}": one.efficiency for side, one in sides}
    parts |= {f"quality_{side}": one.quality for side, one in sides}
    return PreferencePair(
        id=rollout.id,
        prompt=rollout.prompt,
        chosen=parse(best.sample.program),
        rejected=parse(worst.sample.program),
        score_chosen=best.score,
        score_rejected=worst.score,
        parts=parts,
    )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
