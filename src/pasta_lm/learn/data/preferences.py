"""Preference pairs: their file format, and how they are selected from scored rollouts.

Source: PASTA, section 4: score = theoretical speedup + lambda * quality; one pair of a prompt. The
other terms of a score are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import exp, isinf, log
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.journal import Row, read_rows, write_rows
from pasta_lm.language.document import Document, parse_program
from pasta_lm.learn.data.rollouts import Rollout
from pasta_lm.learn.judge.judge import (
    Comparison,
    Judge,
    Verdict,
    both_orders,
    mean_advantage,
    smoothed_ratio,
)
from pasta_lm.recipe import check_positive

TIE = 1e-9
"""Scores that differ by less are equal."""

Efficiency = Literal["speedup", "parallelism", "harmonic", "log_least"]

_TEXTS = ("prompt", "chosen", "rejected")
_SCORES = ("score_chosen", "score_rejected")
_COUNTS = ("num_equal", "num_lacking", "num_unusable", "num_unjudged")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Two answers to one prompt; ``parts`` are the terms of the scores, by their keys in a file."""

    id: str
    prompt: str
    chosen: Document
    rejected: Document
    score_chosen: float
    score_rejected: float
    parts: Mapping[str, float] = field(default_factory=dict)


def write_pairs(path: Path, pairs: Sequence[PreferencePair]) -> None:
    """Write one line of JSON per pair; the file is complete or absent."""
    rows: list[Row] = [
        {
            "id": pair.id,
            "prompt": pair.prompt,
            "chosen": pair.chosen.program,
            "rejected": pair.rejected.program,
            "score_chosen": pair.score_chosen,
            "score_rejected": pair.score_rejected,
            **pair.parts,
        }
        for pair in pairs
    ]
    write_rows(path, rows)


def read_pairs(path: Path) -> list[PreferencePair]:
    """Read pairs; answers are in written form, or in annotator form without lengths.

    Raises:
        InputError: the file cannot be read, or a row is not a pair; it is named.
    """
    return [_read_pair(path, row) for row in read_rows(path)]


def _read_pair(path: Path, row: Row) -> PreferencePair:
    numbers = {key: float(value) for key, value in row.items() if type(value) in (int, float)}
    missing = [key for key in _TEXTS if not isinstance(row.get(key), str) or not row[key]]
    missing += [key for key in _SCORES if key not in numbers]
    if missing:
        raise InputError(f"{path}: row {row['id']} has no {' and no '.join(missing)}")
    try:
        chosen, rejected = parse_program(row["chosen"]), parse_program(row["rejected"])
    except PastaError as exc:
        raise InputError(f"{path}: row {row['id']}: {exc.message}", hint=exc.hint) from exc
    return PreferencePair(
        id=row["id"],
        prompt=row["prompt"],
        chosen=chosen,
        rejected=rejected,
        score_chosen=numbers.pop("score_chosen"),
        score_rejected=numbers.pop("score_rejected"),
        parts=numbers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreConfig:
    """How samples are scored; ``[score]`` of a recipe."""

    quality_weight: float
    """The paper's lambda; ``inf`` is quality alone."""
    efficiency: Efficiency = "speedup"
    quality: Literal["ratio", "advantage"] = "ratio"
    """``ratio``: wins over losses, the paper's; ``advantage``: quality less the baseline's."""
    max_length_change: float | None = None
    """Bound on the length of a chosen answer: the factor by which it may differ from the
    baseline's, less 1. None: no bound."""
    smoothing: float = 1.0
    """Added to the wins and to the losses, see ``smoothed_ratio``."""
    pairs: int = 1
    """Maximum number of pairs of a prompt: best and worst, next best and next worst, and so on."""

    def __post_init__(self) -> None:
        if not self.quality_weight >= 0:  # a NaN neither
            raise UsageError("score.quality_weight must be at least 0")
        check_positive("score", self, "smoothing", "pairs", "max_length_change")

    @property
    def has_originals(self) -> bool:
        """Return whether samples are compared with the answers that came with the prompts, too."""
        return self.quality == "ratio"

    def is_too_short_or_long(self, sample: AnswerRecord, baseline: AnswerRecord) -> bool:
        """Return whether a sample may not be chosen, because its length is not the baseline's."""
        if self.max_length_change is None:
            return False
        ours, theirs = len(sample.text), len(baseline.text)
        most = log(1 + self.max_length_change)
        return ours == 0 or theirs == 0 or abs(log(ours / theirs)) > most

    def score(self, efficiency: float, quality: float) -> float:
        """Return the score of a sample."""
        if isinf(self.quality_weight):
            return quality
        return efficiency + self.quality_weight * quality


class Scored(NamedTuple):
    """A sample with its score."""

    sample: AnswerRecord
    efficiency: float
    quality: float
    score: float
    may_win: bool = True
    """Whether it may be the chosen answer of a pair."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The pairs of some rollouts, with counts of what gave none.

    Attributes:
        pairs: In the order of the rollouts; the first of a prompt has its id, the others have a
            number appended.
        scored: By prompt id, all usable samples.
        num_equal: Prompts whose best and worst sample have the same score.
        num_lacking: Prompts with fewer than two usable samples.
        num_unusable: Samples that cannot be trained on, see ``is_usable``.
        num_unjudged: Usable samples that lack a verdict.
    """

    pairs: list[PreferencePair]
    scored: dict[str, list[Scored]]
    num_equal: int
    num_lacking: int
    num_unusable: int
    num_unjudged: int

    def figures(self) -> dict[str, float]:
        """Return counts, and means over the prompts."""
        drawn = [group for group in self.scored.values() if group]
        figures: dict[str, float] = {
            "num_prompts": len(self.scored),
            "num_pairs": len(self.pairs),
            **{key: getattr(self, key) for key in _COUNTS},
        }
        for key in ("efficiency", "quality", "score"):
            figures[key] = _mean([fmean(getattr(one, key) for one in group) for group in drawn])
        for key in _SCORES:
            figures[key] = _mean([getattr(pair, key) for pair in self.pairs])
        return figures


def efficiency(kind: Efficiency, sample: AnswerRecord, baseline: AnswerRecord) -> float:
    """Return the efficiency of a sample.

    Args:
        kind: ``speedup``: the theoretical speedup, which rewards brevity; ``parallelism``: content
            tokens / critical path, which does not; ``harmonic``: the harmonic mean of the two,
            which neither brevity nor length alone can raise far. ``log_least``: the logarithm of
            the lesser of the two, in which a gain counts the same wherever it begins.
        sample: An answer.
        baseline: The baseline's sequential answer to the same prompt.

    Source: PASTA, section 5.1 (theoretical speedup, parallelism), section 4 (the harmonic mean).
    """
    speedup, parallelism = sample.theoretical_speedup(baseline), sample.parallelism
    if kind == "speedup":
        return speedup
    if kind == "parallelism":
        return parallelism
    if kind == "log_least":
        return log(max(min(speedup, parallelism), exp(-10)))
    return 2 * speedup * parallelism / (speedup + parallelism)


def is_usable(sample: AnswerRecord) -> bool:
    """Return whether an answer can be trained on: it ended by itself, well-formed and not empty.

    If a limit cut an answer, the model did not choose its end, and training would teach that end.
    """
    return sample.is_well_formed and bool(sample.text.strip())


def select_pairs(
    rollouts: Sequence[Rollout], originals: Mapping[str, str], judge: Judge, config: ScoreConfig
) -> Selection:
    """Score all samples, and pair the best with the worst, the next best with the next worst, ....

    Of samples with equal scores the first is taken. No answer is in two pairs of a prompt. A
    sample that lacks a verdict is left out, because its quality is unknown.

    Args:
        rollouts: Samples and the baseline's answers.
        originals: By id, the answer that came with the prompt; a prompt may have none.
        judge: Compares the samples with the other answers.
        config: How samples are scored.
    """
    scored, num_unjudged = score_samples(rollouts, originals, judge, config)
    pairs: list[PreferencePair] = []
    num_equal = num_lacking = 0
    for rollout in rollouts:
        group = scored[rollout.id]
        if len(group) < 2:
            num_lacking += 1
            continue
        found = list(islice(_pairs(rollout, group), config.pairs))
        num_equal += not found
        pairs += found
    num_drawn = sum(len(rollout.samples) for rollout in rollouts)
    num_usable = sum(map(len, scored.values())) + num_unjudged
    num_unusable = num_drawn - num_usable
    return Selection(pairs, scored, num_equal, num_lacking, num_unusable, num_unjudged)


def score_samples(
    rollouts: Sequence[Rollout], originals: Mapping[str, str], judge: Judge, config: ScoreConfig
) -> tuple[dict[str, list[Scored]], int]:
    """Return the judged samples of each rollout, and how many lack a verdict; one judge call."""
    originals = originals if config.has_originals else {}
    verdicts = iter(judge.compare(comparisons_of(rollouts, originals)))
    scored: dict[str, list[Scored]] = {rollout.id: [] for rollout in rollouts}
    num_unjudged = 0
    for rollout in rollouts:
        for sample, comparisons in _compared(rollout, originals.get(rollout.id)):
            found = list(islice(verdicts, len(comparisons)))
            known = [verdict for verdict in found if verdict is not None]
            if len(known) < len(found):
                num_unjudged += 1
                continue
            speed = efficiency(config.efficiency, sample, rollout.baseline)
            quality = _quality(known, judge, config)
            may_win = not config.is_too_short_or_long(sample, rollout.baseline)
            one = Scored(sample, speed, quality, config.score(speed, quality), may_win)
            scored[rollout.id].append(one)
    return scored, num_unjudged


def _quality(known: Sequence[Verdict], judge: Judge, config: ScoreConfig) -> float:
    if config.quality == "ratio":
        return smoothed_ratio(known, config.smoothing)
    return mean_advantage(known, is_grade=getattr(judge, "is_grader", False))


def comparisons_of(rollouts: Sequence[Rollout], originals: Mapping[str, str]) -> list[Comparison]:
    """Return the comparisons that the judge is given for some rollouts, in order."""
    groups = (_compared(rollout, originals.get(rollout.id)) for rollout in rollouts)
    return [one for group in groups for _, comparisons in group for one in comparisons]


def _compared(
    rollout: Rollout, original: str | None
) -> Iterator[tuple[AnswerRecord, list[Comparison]]]:
    """Yield each usable sample with its comparisons: each opponent, both orders."""
    opponents = [rollout.baseline.text] + ([] if original is None else [original])
    for sample in filter(is_usable, rollout.samples):
        texts = ((sample.text, opponent) for opponent in opponents)
        yield (
            sample,
            [one for pair in texts for one in both_orders(rollout.id, rollout.prompt, *pair)],
        )


def _pairs(rollout: Rollout, group: Sequence[Scored]) -> Iterator[PreferencePair]:
    """Yield the best with the worst, the next best with the next worst, while one is better."""
    distinct: dict[str, Scored] = {}
    for one in group:
        distinct.setdefault(one.sample.program, one)
    able = [one for one in distinct.values() if one.may_win]
    downwards = sorted(able, key=lambda one: -one.score)
    upwards = sorted(distinct.values(), key=lambda one: one.score)
    for number, (best, worst) in enumerate(zip(downwards, upwards, strict=False), start=1):
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
