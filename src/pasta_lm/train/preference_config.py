"""What a recipe of stage two may say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pasta_lm.data.preferences import Efficiency
from pasta_lm.errors import UsageError
from pasta_lm.recipe import read_recipe
from pasta_lm.strategies import apar, pasta, sequential
from pasta_lm.tasks.task import Split
from pasta_lm.train.checks import above_0, choice, one_of, refuse_ignored
from pasta_lm.train.config import (
    LoraConfig,
    TrainConfig,
    check_lora,
    check_train,
)
from pasta_lm.train.judge_config import JudgeConfig

LOSSES = ("bonbon", "ipo", "dpo")
LEARNED = (pasta.NAME, apar.NAME, sequential.NAME)
"""Strategies whose answers can be learned from: their tokens are all that a model chose."""
BY_RULE = "auto"
"""Beta as BoNBoN's rule has it for the number of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConfig:
    """Where stage two begins."""

    base: str
    """Pasta-SFT: what round one samples from and begins with, and the reference of all rounds."""
    baseline: str | None = None
    """Baseline-SFT: whose sequential answers samples are held against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsConfig:
    """Prompts made on the spot by ``pasta_lm.tasks``; each round has its own."""

    num_prompts: int
    """Of one round."""
    split: str = "train"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsConfig:
    """Prompts of a file of annotated data, whose answers samples are held against as well."""

    file: str
    num_prompts: int | None = None
    """Of one round, each of which has its own; None: all of the file, shared among the rounds."""
    seed: int = 0
    """Of the order in which they are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsConfig:
    """What is learned: a file of pairs, or those of the best and the worst sample."""

    file: str | None = None
    tasks: PromptsConfig | None = None
    records: RecordsConfig | None = None
    max_tokens: int = 4096
    """The most that a forward pass may hold, both answers of a pair together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsConfig:
    """How answers are sampled."""

    samples: int = 10
    """N: of so many a pair is the best and the worst, also where it comes from a file."""
    temperature: float = 1.0
    max_tokens: int = 1024
    """Of one answer, all threads together."""
    strategy: str = pasta.NAME
    pool_tokens: int = 65_536
    """Cache entries of the engine that samples."""
    files: tuple[str, ...] = ()
    """Rollouts of another run for the first rounds, one for each, instead of sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreConfig:
    """What a sample is worth."""

    quality_weight: float
    """The paper's lambda; ``inf`` is quality alone."""
    efficiency: str = "speedup"
    smoothing: float = 1.0
    """Added to the wins and to the losses."""
    pairs: int = 1
    """The most of one prompt: best and worst, next best and next worst, and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """What is minimised."""

    kind: str = "bonbon"
    alpha: float = 0.005
    """Weight of the likelihood in BoNBoN."""
    beta: float | str = BY_RULE


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceTrainConfig(TrainConfig):
    """How it is learned; ``steps`` or ``epochs`` are those of one round."""

    learning_rate: float = 5e-7
    rounds: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceConfig:
    """A whole recipe of preference optimisation."""

    model: StartConfig
    data: PairsConfig
    train: PreferenceTrainConfig
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    score: ScoreConfig | None = None
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    lora: LoraConfig | None = None
    """None: all weights learn."""

    def __post_init__(self) -> None:
        """Check what single keys cannot say."""
        data = self.data
        one_of("data", file=data.file, tasks=data.tasks, records=data.records)
        check_lora(self.lora, self.train)
        check_train(self.train)
        above_0("train.rounds", self.train.rounds)
        above_0("data.max_tokens", self.data.max_tokens)
        self._check_loss()
        self._check_rollouts()
        if data.file is not None:
            self._check_file()
            return
        if data.tasks is not None:
            above_0("data.tasks.num_prompts", data.tasks.num_prompts)
            choice("data.tasks.split", data.tasks.split, [str(s) for s in Split])
        elif data.records is not None:
            self._check_records(data.records)
        self._check_sampling()

    def _check_loss(self) -> None:
        loss = self.loss
        choice("loss.kind", loss.kind, LOSSES)
        is_given = loss.alpha != LossConfig().alpha
        refuse_ignored("loss.alpha", is_given and loss.kind != "bonbon", "it belongs to bonbon")
        if not 0 <= loss.alpha <= 1:
            raise UsageError("loss.alpha must be between 0 and 1")
        if isinstance(loss.beta, float):
            above_0("loss.beta", loss.beta)
            return
        choice("loss.beta", loss.beta, (BY_RULE, "a number"))
        if loss.kind == "dpo":
            raise UsageError("loss.beta: BoNBoN's rule is not for dpo", hint="give a number")

    def _check_rollouts(self) -> None:
        rollouts = self.rollouts
        if rollouts.samples < 2:
            raise UsageError("rollouts.samples must be at least 2: of one sample none is better")
        for key in ("temperature", "max_tokens", "pool_tokens"):
            above_0(f"rollouts.{key}", getattr(rollouts, key))
        choice("rollouts.strategy", rollouts.strategy, LEARNED)
        if len(rollouts.files) > self.train.rounds:
            raise UsageError("rollouts.files has more files than there are rounds")

    def _check_records(self, records: RecordsConfig) -> None:
        above_0("data.records.num_prompts", records.num_prompts)
        if not self.judge.is_remote:
            raise UsageError(
                "data.records needs a judge: the grader knows tasks alone",
                hint='[judge] kind = "llm", with model and base_url',
            )

    def _check_sampling(self) -> None:
        if self.score is None:
            raise UsageError("[score] is missing: samples need a quality_weight")
        if not self.score.quality_weight >= 0:  # a NaN neither
            raise UsageError("score.quality_weight must be at least 0")
        above_0("score.smoothing", self.score.smoothing)
        above_0("score.pairs", self.score.pairs)
        choice("score.efficiency", self.score.efficiency, [str(one) for one in Efficiency])
        if self.model.baseline is None and len(self.rollouts.files) < self.train.rounds:
            raise UsageError(
                "model.baseline is missing: samples are held against its answers",
                hint="name the model that learned the same data without tags",
            )

    def _check_file(self) -> None:
        refuse_ignored("[score]", self.score is not None, "data.file has scores of its own")
        refuse_ignored("[judge]", self.judge.is_remote, "data.file has scores of its own")
        others = self.rollouts != RolloutsConfig(samples=self.rollouts.samples)
        refuse_ignored("[rollouts]", others, "data.file has the pairs; only samples is read")
        refuse_ignored("model.baseline", self.model.baseline is not None, "nothing is sampled")
        if self.train.rounds != 1:
            raise UsageError("a file of pairs has one round: give [train] rounds = 1")


def read_preference_config(path: Path, changes: Sequence[str] = ()) -> PreferenceConfig:
    """Read a recipe of stage two, with some keys changed (see ``read_recipe``).

    Raises:
        UsageError: it cannot be read, or something in it is unknown or wrong.
    """
    return read_recipe(path, PreferenceConfig, changes)
