"""One round's pairs: its own prompts, samples of the newest model, scores, the best and the worst.

Everything is written down below the round's folder before it counts, so a round goes on after any
stop where it was: ``rollouts.jsonl`` grows by batches, ``pairs.jsonl`` is there whole or not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from pasta_lm.data.pairs import PreferencePair, read_pairs, write_pairs
from pasta_lm.data.preferences import Efficiency, Scoring, Selection, select_pairs
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
from pasta_lm.strategies import pasta
from pasta_lm.strategies.model import Pasta
from pasta_lm.tasks import mixture
from pasta_lm.tasks.task import Task
from pasta_lm.train.learner import MODEL_FOLDER
from pasta_lm.train.preference_config import PreferenceConfig, PreferenceTrainConfig
from pasta_lm.train.progress import append_row
from pasta_lm.train.task_judge import GraderJudge

LOG = "log.jsonl"

Show = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much: a bar, for instance."""


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
        """Return this round's tasks, the same every time and no other round's."""
        config = self.config.data.tasks
        assert config is not None
        # A mixture's seeds are apart by as many tasks as nobody samples in a round.
        drawn = mixture(config.split, config.seed * 1_000_000 + 1_000 * (self.number - 1))
        return list(islice(drawn, config.num_prompts))


def pairs_of(round: Round, show: Show | None = None) -> list[PreferencePair]:
    """Return a round's pairs: those of the recipe's file, or of its rollouts.

    Args:
        round: Which.
        show: Told how far the sampling is; None: lines on standard error say it.

    Raises:
        InputError: a file is not what it should be, or no prompt gave a pair.
    """
    given = round.config.data.file
    if given is not None:
        return read_pairs(Path(given))
    path = round.folder / "pairs.jsonl"
    if not path.exists():
        tasks = round.tasks()
        selection = select(round, tasks, rollouts_of(round, tasks, show))
        figures = selection.figures()
        say(f"round {round.number}: " + ", ".join(f"{k} {v:.4g}" for k, v in figures.items()))
        if not selection.pairs:
            raise InputError("nothing to learn: no prompt has two samples of different score")
        append_row(round.folder / LOG, {"round": round.number, **figures})
        write_pairs(path, selection.pairs)
    return read_pairs(path)


def rollouts_of(round: Round, tasks: Sequence[Task], show: Show | None = None) -> list[Rollout]:
    """Return a round's rollouts: those of a file that the recipe names, or its own.

    Raises:
        InputError: the file is of other prompts, lacks some, or was sampled otherwise.
    """
    files = round.config.rollouts.files
    if round.number <= len(files):
        return _shared(Path(files[round.number - 1]), tasks, round.sampling)
    questions = [Question(task.id, task.prompt) for task in tasks]
    path = round.folder / "rollouts.jsonl"
    return roll_out(path, questions, round.sampling, lambda: answering(round), _teller(round, show))


def select(round: Round, tasks: Sequence[Task], rollouts: Sequence[Rollout]) -> Selection:
    """Return the pairs of some rollouts, judged by the training grader."""
    score = round.config.score
    assert score is not None
    scoring = Scoring(score.quality_weight, Efficiency(score.efficiency), score.smoothing)
    originals = {task.id: task.text for task in tasks}
    return select_pairs(rollouts, originals, GraderJudge(tasks), scoring)


def answering(round: Round) -> Answering:
    """Load the two models that answer.

    Raises:
        UsageError: the model that samples was not taught the language.
    """
    config = round.config
    assert config.model.baseline is not None
    pool_tokens = config.rollouts.pool_tokens
    model = Pasta.from_pretrained(round.newest, pool_tokens=pool_tokens)
    if config.rollouts.strategy == pasta.NAME and not model.is_taught:
        raise UsageError(
            f"model.base {round.newest} was not taught PASTA-LANG: it has no tag pieces",
            hint="train it with `pasta train sft` first",
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


def _shared(path: Path, tasks: Sequence[Task], sampling: Sampling) -> list[Rollout]:
    prompts = {task.id: task.prompt for task in tasks}
    rollouts = read_rollouts(path, sampling)
    for rollout in rollouts:
        if prompts.get(rollout.id) != rollout.prompt:
            raise InputError(
                f"{path} has prompt {rollout.id}, which this recipe does not draw",
                hint="data.tasks must be those of the recipe that sampled it",
            )
    if len(rollouts) < len(tasks):
        raise InputError(
            f"{path} has {len(rollouts)} of this recipe's {len(tasks)} prompts",
            hint="let the run that samples it come to the end of that round",
        )
    return rollouts
