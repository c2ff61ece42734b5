"""From rollouts to pairs: every sample gets a score, the best and the worst are a pair.

If more pairs of a prompt are asked for, the next best and the next worst are the next one.

Source: PASTA, section 4: score = theoretical speedup + lambda * quality; one pair of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from math import isinf
from statistics import fmean
from typing import NamedTuple

from pasta_lm.data.pairs import PreferencePair
from pasta_lm.data.rollouts import Rollout, Sample
from pasta_lm.judging.judge import Comparison, Judge, Verdict, both_orders, smoothed_ratio
from pasta_lm.language.document import parse_program

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
        pairs: The most of one prompt, from 1 on.
    """

    quality_weight: float
    efficiency: Efficiency = Efficiency.SPEEDUP
    smoothing: float = 1.0
    pairs: int = 1

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
        pairs: In the order of the rollouts; the first of a prompt has its id, the next ones have a
            number behind it.
        scored: By id, all usable samples of each rollout.
        num_equal: Prompts whose best and worst sample are worth the same.
        num_lacking: Prompts with fewer than two usable samples.
        num_unusable: Samples that were left out, see ``is_usable``.
        num_unjudged: Usable samples that were left out because a verdict on them is missing.
    """

    pairs: list[PreferencePair]
    scored: dict[str, list[Scored]]
    num_equal: int
    num_lacking: int
    num_unusable: int
    num_unjudged: int

    def figures(self) -> dict[str, float]:
        """Return counts, and means over prompts of what was drawn and of what was picked."""
        drawn = [group for group in self.scored.values() if group]
        return {
            "num_prompts": len(self.scored),
            "num_pairs": len(self.pairs),
            "num_equal": self.num_equal,
            "num_lacking": self.num_lacking,
            "num_unusable": self.num_unusable,
            "num_unjudged": self.num_unjudged,
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
    """Score all samples; return the best and the worst of each prompt, and so on inwards.

    Among equals the one that was drawn first is taken, which favours nothing. No answer is in two
    pairs of a prompt. A sample on which a verdict is missing has no quality that could be held
    against another's, so it is left out.

    Args:
        rollouts: Samples and the baseline's answers.
        originals: By id, the answer that came with the prompt; a prompt may have none.
        judge: Who compares.
        scoring: How.
    """
    scored, num_unjudged = _score(rollouts, originals, judge, scoring)
    pairs: list[PreferencePair] = []
    num_equal = num_lacking = 0
    for rollout in rollouts:
        group = scored[rollout.id]
        if len(group) < 2:
            num_lacking += 1
            continue
        found = list(islice(_pairs(rollout, group), scoring.pairs))
        num_equal += not found
        pairs += found
    num_drawn = sum(len(rollout.samples) for rollout in rollouts)
    num_usable = sum(map(len, scored.values())) + num_unjudged
    num_unusable = num_drawn - num_usable
    return Selection(pairs, scored, num_equal, num_lacking, num_unusable, num_unjudged)


def _score(
    rollouts: Sequence[Rollout], originals: Mapping[str, str], judge: Judge, scoring: Scoring
) -> tuple[dict[str, list[Scored]], int]:
    """Return the judged samples of each rollout with their scores, and how many lack a verdict.

    The judge is asked once.
    """
    asked = [_asked(rollout, originals.get(rollout.id)) for rollout in rollouts]
    flat = [one for group in asked for _, comparisons in group for one in comparisons]
    verdicts = iter(judge.compare(flat))
    scored: dict[str, list[Scored]] = {rollout.id: [] for rollout in rollouts}
    num_unjudged = 0
    for rollout, group in zip(rollouts, asked, strict=True):
        for sample, comparisons in group:
            given = list(islice(verdicts, len(comparisons)))
            said = [verdict for verdict in given if verdict is not None]
            if len(said) < len(given):
                num_unjudged += 1
                continue
            scored[rollout.id].append(_scored(sample, rollout.baseline, said, scoring))
    return scored, num_unjudged


def comparisons_of(rollouts: Sequence[Rollout], originals: Mapping[str, str]) -> list[Comparison]:
    """Return what a judge is asked of some rollouts, in order."""
    asked = [_asked(rollout, originals.get(rollout.id)) for rollout in rollouts]
    return [one for group in asked for _, comparisons in group for one in comparisons]


def _asked(rollout: Rollout, original: str | None) -> list[tuple[Sample, list[Comparison]]]:
    """Return each usable sample with what is asked of it: each opponent, both orders."""
    opponents = [rollout.baseline.text] + ([] if original is None else [original])
    return [
        (
            sample,
            [
                comparison
                for opponent in opponents
                for comparison in both_orders(rollout.id, rollout.prompt, sample.text, opponent)
            ],
        )
        for sample in rollout.samples
        if is_usable(sample)
    ]


def _scored(
    sample: Sample, baseline: Sample, verdicts: Sequence[Verdict], scoring: Scoring
) -> Scored:
    speed = efficiency(scoring.efficiency, sample, baseline)
    quality = smoothed_ratio(verdicts, scoring.smoothing)
    return Scored(sample, speed, quality, scoring.score(speed, quality))


def _pairs(rollout: Rollout, group: Sequence[Scored]) -> Iterator[PreferencePair]:
    """Yield the best with the worst, the next best with the next worst, while one is better."""
    distinct: dict[str, Scored] = {}
    for one in group:
        distinct.setdefault(one.sample.program, one)
    downwards = sorted(distinct.values(), key=lambda one: -one.score)
    upwards = sorted(distinct.values(), key=lambda one: one.score)
    for number, (best, worst) in enumerate(zip(downwards, upwards, strict=True), start=1):
        if best.score - worst.score < TIE:
            return
        name = rollout.id if number == 1 else f"{rollout.id}/{number}"
        yield _pair(name, rollout.prompt, best, worst)


def _pair(name: str, prompt: str, best: Scored, worst: Scored) -> PreferencePair:
    sides = (("chosen", best), ("rejected", worst))
    parts = {f"efficiency_{side}": one.efficiency for side, one in sides}
    parts |= {f"quality_{side}": one.quality for side, one in sides}
    return PreferencePair(
        id=name,
        prompt=prompt,
        chosen=parse_program(best.sample.program),
        rejected=parse_program(worst.sample.program),
        score_chosen=best.score,
        score_rejected=worst.score,
        parts=parts,
    )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
