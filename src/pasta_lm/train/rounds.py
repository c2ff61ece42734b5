"""One round's pairs: its own prompts, samples of the newest model, scores, the best and the worst.

Everything is written down below the round's folder before it counts, so a round goes on after any
stop where it was: ``rollouts.jsonl`` grows by batches, ``pairs.jsonl`` is there whole or not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from pasta_lm.data.pairs import PreferencePair, read_pairs, write_pairs
from pasta_lm.data.preferences import (
    Efficiency,
    Scoring,
    Selection,
    comparisons_of,
    select_pairs,
)
from pasta_lm.data.records import read_records
from pasta_lm.data.rollouts import (
    Answering,
    Progress,
    Question,
    Rollout,
    Sampling,
    read_rollouts,
    roll_out,
)
from pasta_lm.errors import InputError, UsageError
from pasta_lm.judging.judge import Judge
from pasta_lm.judging.llm_judge import LLMJudge
from pasta_lm.judging.llm_judge import Progress as JudgeProgress
from pasta_lm.remote.budget import Spending
from pasta_lm.strategies import pasta
from pasta_lm.strategies.model import Pasta
from pasta_lm.tasks import mixture
from pasta_lm.tasks.task import Task
from pasta_lm.train.judging import judge_of, judged_by, without_verdict
from pasta_lm.train.learner import MODEL_FOLDER
from pasta_lm.train.preference_config import PreferenceConfig, PreferenceTrainConfig
from pasta_lm.train.progress import append_row

LOG = "log.jsonl"


class Show(Protocol):
    """A bar, for instance."""

    def __call__(self, name: str, done: int, total: int, note: str = "") -> None:
        """Take up what is being done, how much of it is done, of how much, and what to add."""


class Asked(NamedTuple):
    """A prompt of a round, and the answer that came with it."""

    id: str
    prompt: str
    text: str
    """Plain; samples are held against it."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a recipe: the newest model answers, and goes on from what is best of it."""

    config: PreferenceConfig
    number: int
    """From 1 on."""
    newest: str
    """Folder or hub id of the model that samples, and from which training goes on."""

    @property
    def folder(self) -> Path:
        """Return where everything of this round lies."""
        return Path(self.config.train.out) / f"round-{self.number}"

    @property
    def train(self) -> PreferenceTrainConfig:
        """Return how this round trains: in its own folder, by an order of its own."""
        train = self.config.train
        return replace(train, out=str(self.folder), seed=train.seed + self.number - 1)

    @property
    def sampling(self) -> Sampling:
        """Return how this round's answers are drawn."""
        rollouts, before = self.config.rollouts, self.number - 1
        return Sampling(
            # Not its whole path: a run goes on where it was moved to.
            model=f"round-{before}/{MODEL_FOLDER}" if before else self.newest,
            baseline=self.config.model.baseline or "",
            strategy=rollouts.strategy,
            round=self.number,
            seed=self.config.train.seed,
            samples=rollouts.samples,
            temperature=rollouts.temperature,
            max_tokens=rollouts.max_tokens,
        )

    def tasks(self) -> list[Task]:
        """Return this round's tasks, the same every time and no other round's; of a file: none."""
        config = self.config.data.tasks
        if config is None:
            return []
        # A mixture's seeds are apart by as many tasks as nobody samples in a round.
        drawn = mixture(config.split, config.seed * 1_000_000 + 1_000 * (self.number - 1))
        return list(islice(drawn, config.num_prompts))

    def asked(self) -> list[Asked]:
        """Return this round's prompts: its tasks, or its share of a file's records.

        Raises:
            InputError: the file cannot be read, or has too few.
        """
        config = self.config.data.records
        if config is None:
            return [Asked(task.id, task.prompt, task.text) for task in self.tasks()]
        records, num_rounds = read_records(Path(config.file)), self.config.train.rounds
        Random(f"records/{config.seed}").shuffle(records)
        count = config.num_prompts or len(records) // num_rounds
        if not count or count * num_rounds > len(records):
            raise InputError(
                f"{config.file} has {len(records)} records, too few for {num_rounds} rounds of "
                f"{count or 1}",
                hint="lower data.records.num_prompts",
            )
        drawn = records[(self.number - 1) * count : self.number * count]
        return [Asked(one.id, one.prompt, one.document.plain_text) for one in drawn]


def pairs_of(round: Round, show: Show | None = None) -> list[PreferencePair]:
    """Return a round's pairs: those of the recipe's file, or of its rollouts.

    Args:
        round: Which.
        show: Told how far the sampling is; None: lines on standard error say it.

    Raises:
        InputError: a file is not what it should be, or no prompt gave a pair.
        MissingVerdictsError: too many comparisons have no verdict.
        PastaError: the judge cannot be asked, or may not: see ``LLMJudge.ask``.
    """
    given = round.config.data.file
    if given is not None:
        return read_pairs(Path(given))
    path = round.folder / "pairs.jsonl"
    if not path.exists():
        prompts = round.asked()
        judge = judge_of(round.config, round.tasks(), _judging_teller(round, show))
        rollouts = rollouts_of(round, prompts, show)
        if isinstance(judge, LLMJudge):
            asked = judge.estimate(comparisons_of(rollouts, originals(prompts)))
            say(f"round {round.number}: {judge.name} is to judge: {asked}")
        selection = select(round, prompts, rollouts, judge)
        figures = selection.figures()
        if (said := without_verdict(judge)) is not None:
            say(f"round {round.number}: {said}; {selection.num_unjudged} samples left out")
        say(f"round {round.number}: " + ", ".join(f"{k} {v:.4g}" for k, v in figures.items()))
        if not selection.pairs:
            raise InputError("nothing to learn: no prompt has two samples of different score")
        append_row(round.folder / LOG, {"round": round.number, **figures, **judged_by(judge)})
        write_pairs(path, selection.pairs)
    return read_pairs(path)


def rollouts_of(round: Round, asked: Sequence[Asked], show: Show | None = None) -> list[Rollout]:
    """Return a round's rollouts: those of a file that the recipe names, or its own.

    Raises:
        InputError: the file is of other prompts, lacks some, or was sampled otherwise.
    """
    files = round.config.rollouts.files
    if round.number <= len(files):
        return _shared(Path(files[round.number - 1]), asked, round.sampling)
    questions = [Question(one.id, one.prompt) for one in asked]
    path = round.folder / "rollouts.jsonl"
    return roll_out(path, questions, round.sampling, lambda: answering(round), _teller(round, show))


def select(
    round: Round, asked: Sequence[Asked], rollouts: Sequence[Rollout], judge: Judge
) -> Selection:
    """Return the pairs of some rollouts."""
    score = round.config.score
    assert score is not None
    scoring = Scoring(
        score.quality_weight, Efficiency(score.efficiency), score.smoothing, score.pairs
    )
    return select_pairs(rollouts, originals(asked), judge, scoring)


def originals(prompts: Sequence[Asked]) -> dict[str, str]:
    """Return by prompt the answer that came with it."""
    return {one.id: one.text for one in prompts}


def answering(round: Round) -> Answering:
    """Load the two models that answer.

    Raises:
        UsageError: the model that samples was not taught the strategy.
    """
    config = round.config
    assert config.model.baseline is not None
    pool_tokens = config.rollouts.pool_tokens
    model = Pasta.from_pretrained(round.newest, pool_tokens=pool_tokens)
    if not model.has_tag_pieces and config.rollouts.strategy == pasta.NAME:
        raise UsageError(
            f"model.base {round.newest} was not taught PASTA-LANG: it has no tag pieces",
            hint="train it with `pasta train sft` first",
        )
    if not model.supports(config.rollouts.strategy):
        raise UsageError(
            f"model.base {round.newest} was not taught {config.rollouts.strategy!r}, but "
            f"{model.engine.loaded.trained_strategy!r}",
            hint="rollouts.strategy must be what its data taught it",
        )
    if config.model.baseline == round.newest:
        return Answering(model, model)
    return Answering(model, Pasta.from_pretrained(config.model.baseline, pool_tokens=pool_tokens))


def say(line: str) -> None:
    """Write a line for whoever watches."""
    print(f"pasta: {line}", file=sys.stderr, flush=True)  # noqa: T201


def _teller(round: Round, show: Show | None) -> Progress:
    """Return what says how far a round's sampling is."""

    def tell(num_done: int, num_all: int, left_s: float | None) -> None:
        if show is not None:
            show(f"round {round.number}: prompts sampled", num_done, num_all)
            return
        left = "" if left_s is None else f"  {left_s / 60:.1f} min left"
        say(f"round {round.number}: {num_done}/{num_all} prompts sampled{left}")

    return tell


def _judging_teller(round: Round, show: Show | None) -> JudgeProgress:
    """Return what says how far a round's judging is: a bar, or a line for each twentieth."""

    def tell(num_done: int, num_all: int, spent: Spending) -> None:
        if show is not None:
            show(f"round {round.number}: comparisons judged", num_done, num_all, str(spent))
        elif num_done == num_all or not num_done % max(num_all // 20, 1):
            say(f"round {round.number}: {num_done}/{num_all} comparisons judged, {spent}")

    return tell


def _shared(path: Path, asked: Sequence[Asked], sampling: Sampling) -> list[Rollout]:
    prompts = {one.id: one.prompt for one in asked}
    rollouts = read_rollouts(path, sampling)
    for rollout in rollouts:
        if prompts.get(rollout.id) != rollout.prompt:
            raise InputError(
                f"{path} has prompt {rollout.id}, which this recipe does not draw",
                hint="prompts under [data] must be those of the recipe that sampled it",
            )
    if len(rollouts) < len(asked):
        raise InputError(
            f"{path} has {len(rollouts)} of this recipe's {len(asked)} prompts",
            hint="let the run that samples it come to the end of that round",
        )
    return rollouts
