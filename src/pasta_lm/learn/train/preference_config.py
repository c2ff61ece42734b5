"""The recipe of stage two, preference optimisation, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pasta_lm.errors import UsageError
from pasta_lm.learn.data.preferences import ScoreConfig
from pasta_lm.learn.train.config import LoraConfig, SplitName, TrainConfig
from pasta_lm.learn.train.judging import JudgeConfig
from pasta_lm.recipe import check_choice, check_not_ignored, check_one_of, check_positive
from pasta_lm.strategies.model import Servers

BY_RULE = "auto"
"""``loss.beta``: BoNBoN's rule for the number of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConfig:
    """The models that stage two begins with."""

    base: str
    """Pasta-SFT: samples in round one, is trained further, and is the reference of all rounds."""
    baseline: str | None = None
    """Baseline-SFT, whose sequential answers are compared with the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsConfig:
    """Prompts that ``pasta_lab.tasks`` generates; each round has its own."""

    num_prompts: int
    """Per round."""
    split: SplitName = "train"
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("data.tasks", self, "num_prompts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsConfig:
    """Prompts of a file of annotated data, whose answers are compared with the samples too."""

    file: str
    num_prompts: int | None = None
    """Per round, each with its own prompts; None: the whole file, divided among the rounds."""
    seed: int = 0
    """Of the order of the prompts."""

    def __post_init__(self) -> None:
        check_positive("data.records", self, "num_prompts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsConfig:
    """The training data: a file of pairs, or pairs made from samples."""

    file: str | None = None
    tasks: PromptsConfig | None = None
    records: RecordsConfig | None = None
    max_tokens: int = 4096
    """Maximum number of tokens in a forward pass, both answers of a pair together."""

    def __post_init__(self) -> None:
        check_one_of("data", file=self.file, tasks=self.tasks, records=self.records)
        check_positive("data", self, "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsConfig:
    """How answers are sampled."""

    samples: int = 10
    """N: a pair is the best and the worst of N, also if it comes from a file."""
    temperature: float = 1.0
    sampled: Literal["all", "structure"] = "all"
    """``structure``: main's promises, syncs and end are sampled, and all text is greedy."""
    max_tokens: int = 1024
    """Of one answer, all threads together."""
    strategy: Literal["pasta", "apar", "sequential"] = "pasta"
    """Strategies whose answers can be trained on: the model chose each of their tokens."""
    pool_tokens: int = 65_536
    """KV cache size of the sampling engine, in tokens."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of the engine that samples; None: float32 on a CPU, else as the model was saved."""
    servers: Servers | None = None
    """Stock servers that hold the model of each round and sample it; None: it is loaded."""
    files: tuple[str, ...] = ()
    """Rollouts of another run for the first rounds, one file per round, instead of sampling."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise UsageError("rollouts.samples must be at least 2: of one sample none is better")
        if self.servers is not None and self.sampled != "all":
            raise UsageError(
                "rollouts.sampled: a stock server samples all tokens, not structure alone",
                hint="leave out rollouts.servers",
            )
        check_positive("rollouts", self, "temperature", "max_tokens", "pool_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """The loss over pairs."""

    kind: Literal["bonbon", "ipo", "dpo"] = "bonbon"
    alpha: float = 0.005
    """Weight of the likelihood in BoNBoN."""
    beta: float | str = BY_RULE
    on: Literal["answer", "decisions"] = "answer"
    """What is learned: whole answers, as in the paper, or main's decisions alone."""
    kl_weight: float = 0.0
    """Weight of the divergence from the reference model, over all tokens of both answers."""
    kl_bound: float = 0.0
    """Nats per token up to which the divergence costs nothing."""

    def __post_init__(self) -> None:
        has_alpha = self.alpha != 0.005 and self.kind != "bonbon"
        check_not_ignored("loss.alpha", has_alpha, "it belongs to bonbon")
        if not 0 <= self.alpha <= 1:
            raise UsageError("loss.alpha must be between 0 and 1")
        if self.kl_weight < 0 or self.kl_bound < 0:
            raise UsageError("loss.kl_weight and loss.kl_bound must be at least 0")
        is_free = bool(self.kl_bound) and not self.kl_weight
        check_not_ignored("loss.kl_bound", is_free, "loss.kl_weight is 0")
        if isinstance(self.beta, float):
            check_positive("loss", self, "beta")
            return
        check_choice("loss.beta", self.beta, (BY_RULE, "a number"))
        if self.kind == "dpo":
            raise UsageError("loss.beta: BoNBoN's rule is not for dpo", hint="give a number")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevelopmentConfig:
    """Prompts that no round trains on: a round is kept if its answers to them score no less."""

    num_prompts: int
    file: str | None = None
    """Annotated data; None: the prompts of ``data.records`` that no round has, or tasks of dev."""

    def __post_init__(self) -> None:
        check_positive("development", self, "num_prompts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceTrainConfig(TrainConfig):
    """Optimiser, schedule and output; ``steps`` and ``epochs`` are per round."""

    learning_rate: float = 5e-7
    rounds: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceConfig:
    """A recipe of preference optimisation."""

    model: StartConfig
    data: PairsConfig
    train: PreferenceTrainConfig
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    score: ScoreConfig | None = None
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    lora: LoraConfig | None = None
    """None: all weights are trained."""
    development: DevelopmentConfig | None = None
    """None: every round is kept, as in the paper."""

    def __post_init__(self) -> None:
        check_positive("train", self.train, "rounds")
        of_stage_one = {
            "train.tag_learning_rate": self.train.tag_learning_rate is not None,
            "train.freeze_old_rows": self.train.freeze_old_rows,
            "train.decision_weight": self.train.decision_weight != 1,
            "train.save": self.train.save != "merged",
            "lora.start": self.lora is not None and self.lora.start is not None,
        }
        for key, is_set in of_stage_one.items():
            check_not_ignored(key, is_set, "it belongs to stage one")
        num_files, num_rounds = len(self.rollouts.files), self.train.rounds
        if num_files > num_rounds:
            raise UsageError("rollouts.files has more files than there are rounds")
        if self.data.file is not None:
            self._check_file()
            return
        if self.data.records is not None and self.judge.is_grader:
            raise UsageError(
                "data.records needs a judge: the grader knows tasks alone",
                hint='[judge] kind = "llm", with model and base_url; or "local" or "likelihood"',
            )
        if self.score is None:
            raise UsageError("[score] is missing: samples need a quality_weight")
        if self.development and self.development.file and self.judge.is_grader:
            raise UsageError("development.file needs a judge: the grader knows tasks alone")
        needs_baseline = num_files < num_rounds or self.development is not None
        if self.model.baseline is None and needs_baseline:
            raise UsageError(
                "model.baseline is missing: its answers are compared with the samples",
                hint="name the model that was trained on the same data without tags",
            )

    def _check_file(self) -> None:
        check_not_ignored("[score]", self.score is not None, "data.file has scores of its own")
        check_not_ignored("[judge]", not self.judge.is_grader, "data.file has scores of its own")
        others = self.rollouts != RolloutsConfig(samples=self.rollouts.samples)
        check_not_ignored("[rollouts]", others, "data.file has the pairs; only samples is read")
        check_not_ignored("[development]", self.development, "data.file has no judge")
        check_not_ignored("model.baseline", self.model.baseline is not None, "nothing is sampled")
        if self.train.rounds != 1:
            raise UsageError("a file of pairs has one round: give [train] rounds = 1")
