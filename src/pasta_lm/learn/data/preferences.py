"""Preference pairs: their file format, and how they are selected from scored rollouts.

Source: PASTA, section 4: score = theoretical speedup + lambda * quality; one pair of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isinf
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.journal import Row, read_rows, write_rows
from pasta_lm.language.document import Document, parse_program
from pasta_lm.learn.data.rollouts import Rollout
from pasta_lm.learn.judge.judge import Comparison, Judge, both_orders, smoothed_ratio
from pasta_lm.recipe import check_positive

TIE = 1e-9  # Scores that differ by less are equal.
_TEXTS = ("prompt", "chosen", "rejected")
_SCORES = ("score_chosen", "score_rejected")


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
    write_rows(path, [_row_of(pair) for pair in pairs])


def _row_of(pair: PreferencePair) -> Row:
    texts = {"chosen": pair.chosen.program, "rejected": pair.rejected.program}
    scores = {key: getattr(pair, key) for key in _SCORES}
    return {"id": pair.id, "prompt": pair.prompt, **texts, **scores, **pair.parts}


def read_pairs(path: Path) -> list[PreferencePair]:
    """Read pairs; answers are in written form, or in annotator form without lengths."""
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

    quality_weight: float  # The paper's lambda; ``inf`` is quality alone.
    smoothing: float = 1.0  # Added to the wins and to the losses of a sample.

    def __post_init__(self) -> None:
        if not self.quality_weight >= 0:  # a NaN neither
            raise UsageError("score.quality_weight must be at least 0")
        check_positive("score", self, "smoothing")

    def score(self, efficiency: float, quality: float) -> float:
        if isinf(self.quality_weight):
            return quality
        return efficiency + self.quality_weight * quality


class Scored(NamedTuple):
    """A sample with its speedup over the baseline's answer, ratio of wins to losses, and score."""

    sample: AnswerRecord
    efficiency: float
    quality: float
    score: float


class Selection(NamedTuple):
    """The pairs of some rollouts, their scored samples by prompt id, and counts of the others."""

    pairs: list[PreferencePair]
    scored: Mapping[str, Sequence[Scored]]
    num_unusable: int
    num_unjudged: int

    def figures(self) -> dict[str, float]:
        """Return counts, and means over the prompts."""
        groups = [group for group in self.scored.values() if group]
        num_lacking = sum(len(group) < 2 for group in self.scored.values())
        columns = {
            key: [fmean(getattr(sample, key) for sample in group) for group in groups]
            for key in ("efficiency", "quality", "score")
        } | {key: [getattr(pair, key) for pair in self.pairs] for key in _SCORES}
        return {
            "num_prompts": len(self.scored),
            "num_pairs": len(self.pairs),
            "num_equal": len(self.scored) - len(self.pairs) - num_lacking,
            "num_lacking": num_lacking,
            "num_unusable": self.num_unusable,
            "num_unjudged": self.num_unjudged,
            **{key: fmean(values) if values else 0.0 for key, values in columns.items()},
        }


def is_usable(sample: AnswerRecord) -> bool:
    """Return whether an answer can be trained on: it ended by itself, well-formed and not empty.

    If a limit cut an answer, the model did not choose its end, and training would teach that end.
    """
    return sample.is_well_formed and bool(sample.text.strip())


def select_pairs(
    rollouts: Sequence[Rollout], originals: Mapping[str, str], judge: Judge, config: ScoreConfig
) -> Selection:
    """Score all samples, and pair the best of each prompt with the worst.

    Of samples with equal scores the first is taken; one that lacks a verdict is left out. The judge
    is called once. ``originals`` are the answers that came with some of the prompts, by id.
    """
    verdicts = iter(judge.compare(comparisons_of(rollouts, originals)))
    pairs: list[PreferencePair] = []
    scored: dict[str, list[Scored]] = {}
    num_unusable = num_unjudged = 0
    for rollout in rollouts:
        group = scored[rollout.id] = []
        num_verdicts = 2 * len(_opponents(rollout, originals))
        usable = [sample for sample in rollout.samples if is_usable(sample)]
        num_unusable += len(rollout.samples) - len(usable)
        for sample in usable:
            drawn = list(islice(verdicts, num_verdicts))
            known = [verdict for verdict in drawn if verdict is not None]
            if len(known) < len(drawn):
                num_unjudged += 1
                continue
            speedup = sample.theoretical_speedup(rollout.baseline)
            quality = smoothed_ratio(known, config.smoothing)
            group.append(Scored(sample, speedup, quality, config.score(speedup, quality)))
        pairs += _pairs_of(rollout, group)
    return Selection(pairs, scored, num_unusable, num_unjudged)


def comparisons_of(rollouts: Sequence[Rollout], originals: Mapping[str, str]) -> list[Comparison]:
    """Return the comparisons that the judge is given for some rollouts, in order."""
    return [
        comparison
        for rollout in rollouts
        for sample in filter(is_usable, rollout.samples)
        for opponent in _opponents(rollout, originals)
        for comparison in both_orders(rollout.id, rollout.prompt, sample.text, opponent)
    ]


def _opponents(rollout: Rollout, originals: Mapping[str, str]) -> list[str]:
    original = originals.get(rollout.id)
    return [rollout.baseline.text] + ([] if original is None else [original])


def _pairs_of(rollout: Rollout, group: Sequence[Scored]) -> Iterator[PreferencePair]:
    """Yield the best and the worst sample, if one is better."""
    distinct: dict[str, Scored] = {}
    for scored in group:
        distinct.setdefault(scored.sample.program, scored)
    if not distinct:
        return
    best, worst = (choose(distinct.values(), key=lambda own: own.score) for choose in (max, min))
    if best.score - worst.score < TIE:
        return
    sides = (("chosen", best), ("rejected", worst))
    parts = {f"efficiency_{side}": sample.efficiency for side, sample in sides}
    parts |= {f"quality_{side}": sample.quality for side, sample in sides}
    yield PreferencePair(
        id=rollout.id,
        prompt=rollout.prompt,
        chosen=parse_program(best.sample.program),
        rejected=parse_program(worst.sample.program),
        score_chosen=best.score,
        score_rejected=worst.score,
        parts=parts,
    )
