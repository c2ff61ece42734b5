"""Answers to development prompts between rounds: a round that loses on them is not kept.

The kept model of before and the newest one answer the same prompts greedily, and the same score
decides as in training. What a score may hide is shown beside it: coverage, syncs, repetition,
length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from pasta_lab.tasks import mixture
from pasta_lab.tasks.task import Task
from pasta_lm.errors import InputError
from pasta_lm.journal import write_rows
from pasta_lm.language.document import parse_program
from pasta_lm.learn.data.preferences import Scored, score_samples
from pasta_lm.learn.data.rollouts import PromptWithReference, Rollout, roll_out
from pasta_lm.learn.judge.answer_text import coverage, items_asked, repetition
from pasta_lm.learn.judge.likelihood import LikelihoodJudge
from pasta_lm.learn.train.judging import judge_of
from pasta_lm.learn.train.preference_config import RecordsConfig
from pasta_lm.learn.train.rounds import (
    Round,
    Show,
    has_originals,
    load_models,
    originals,
    show_judging,
    show_sampling,
    shuffled,
)
from pasta_lm.learn.train.trainer import LOG, append_row

ANSWERS, RESULT = "development.jsonl", "development.json"


@dataclass(frozen=True, slots=True)
class Check:
    """The development prompts of a run, answered by one model after another."""

    round: Round

    def is_kept(self, folder: Path, show: Show | None = None) -> bool:
        """Return whether a round's model answers no worse than the model that it began with.

        The result is stored in the round's folder: asked again, it is read from there.

        Raises:
            InputError: there are too few prompts, or a stored file is damaged.
            MissingVerdictsError: too many comparisons have no verdict.
        """
        path = self.round.folder / RESULT
        if path.exists():
            return bool(json.loads(path.read_text("utf-8"))["is_kept"])
        newer = self._answers(self.round.folder / ANSWERS, str(folder), show)
        before = self._answers(self._answers_before, self.round.newest, show)
        result = self._compare(before, newer, show)
        self.round.say(_line(result))
        append_row(self.round.folder / LOG, {"round": self.round.number, "development": result})
        write_rows(path, [result])
        return bool(result["is_kept"])

    @property
    def _answers_before(self) -> Path:
        """Where the answers of the model are that the round began with."""
        is_first = self.round.newest == self.round.config.model.base
        out = Path(self.round.config.train.out)
        return (out if is_first else Path(self.round.newest).parent) / ANSWERS

    def tasks(self) -> list[Task]:
        """Return the tasks; none if the prompts are those of a file."""
        config, tasks = self.round.config.development, self.round.config.data.tasks
        assert config is not None
        if config.file is not None or tasks is None:
            return []
        return list(islice(mixture("dev", tasks.seed), config.num_prompts))

    def prompts(self) -> list[PromptWithReference]:
        """Return the prompts, which no round has.

        Raises:
            InputError: the file has too few.
        """
        config, records = self.round.config.development, self.round.config.data.records
        assert config is not None
        if config.file is not None:
            found = shuffled(RecordsConfig(file=config.file))[: config.num_prompts]
        elif records is not None:
            found = shuffled(records)[-config.num_prompts :]
        else:
            return [PromptWithReference(one.id, one.prompt, one.text) for one in self.tasks()]
        if len(found) < config.num_prompts:
            raise InputError(
                f"there are {len(found)} prompts for development, and {config.num_prompts} are "
                "wanted",
                hint="lower development.num_prompts",
            )
        return found

    def _answers(self, path: Path, model: str, show: Show | None) -> list[Rollout]:
        """Return a model's greedy answers, beside the baseline's; always decoded in this process.

        Servers hold the model of the round, not the one that it ends with.
        """
        config = self.round.config
        local = replace(config, rollouts=replace(config.rollouts, servers=None))
        own = replace(self.round, newest=model, config=local)
        sampling = replace(own.sampling, round=0, samples=1, temperature=0.0)
        shown = show_sampling(self.round, show, "development prompts answered")
        return roll_out(path, self.prompts(), sampling, lambda: load_models(own), shown)

    def _compare(
        self, before: Sequence[Rollout], newer: Sequence[Rollout], show: Show | None
    ) -> dict[str, Any]:
        config = self.round.config
        progress = show_judging(self.round, show)
        judge = judge_of(config.judge, config.train.out, self.tasks(), progress)
        if isinstance(judge, LikelihoodJudge):
            judge.own.update({one.id: one.baseline.text for one in before})
        assert config.score is not None
        known = originals(self.prompts()) if has_originals(config) else {}
        scored = [score_samples(some, known, judge, config.score)[0] for some in (before, newer)]
        found = [group[0].score for side in scored for group in side.values() if group]
        worst = min(found, default=0.0)
        scores = [[_score_of(side[one.id], worst) for one in before] for side in scored]
        gains = [new - old for old, new in zip(*scores, strict=True)]
        return {
            "id": f"round-{self.round.number}",
            "num_prompts": len(before),
            "is_kept": fmean(gains) >= 0,
            "gain": fmean(gains),
            "before": _figures(before, scores[0]),
            "after": _figures(newer, scores[1]),
        }


def _score_of(group: Sequence[Scored], worst: float) -> float:
    """Return an answer's score; one that did not end or has no verdict counts as the worst."""
    return group[0].score if group else worst


def _figures(rollouts: Sequence[Rollout], scores: Sequence[float]) -> dict[str, float | None]:
    """Return what is watched; a figure without a single case is None."""
    pairs = [(one.samples[0], one.baseline) for one in rollouts]
    documents = [parse_program(ours.program) for ours, _ in pairs if ours.is_well_formed]
    asked = [(items_asked(one.prompt), one.samples[0].text) for one in rollouts]
    covered = [coverage(number, text) for number, text in asked if number]
    lines = [[line for line in ours.text.splitlines() if line.strip()] for ours, _ in pairs]
    lengths = [(len(a.text), len(b.text)) for a, b in pairs if a.text and b.text]
    return {
        "score": fmean(scores),
        "well_formed": fmean(float(ours.is_well_formed) for ours, _ in pairs),
        "parallelism": _geometric(ours.parallelism for ours, _ in pairs),
        "theoretical_speedup": _geometric(a.theoretical_speedup(b) for a, b in pairs),
        "forks": _mean([float(bool(one.blocks)) for one in documents]),
        "blocks": _mean([float(len(one.blocks)) for one in documents]),
        "syncs": _mean([float(one.num_syncs) for one in documents]),
        "coverage": _mean(covered),
        "repetition": fmean(sum(repetition(one)) for one in lines),
        "length_ratio": _geometric(ours / theirs for ours, theirs in lengths),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _geometric(values: Iterator[float]) -> float | None:
    logs = [log(one) for one in values if one > 0]
    return exp(fmean(logs)) if logs else None


_SHOWN = ("score", "theoretical_speedup", "parallelism", "coverage", "syncs", "repetition")


def _line(result: Mapping[str, Any]) -> str:
    show: Callable[[float | None], str] = lambda one: "-" if one is None else f"{one:.3g}"  # noqa: E731
    before, after = result["before"], result["after"]
    parts = [f"{key} {show(before[key])} -> {show(after[key])}" for key in _SHOWN]
    verdict = "kept" if result["is_kept"] else "not kept: it loses on development prompts"
    return f"{verdict}; {result['num_prompts']} prompts: {', '.join(parts)}"
