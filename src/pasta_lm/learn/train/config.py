"""The recipes of both stages, supervised finetuning and preference optimisation, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import ceil
from pathlib import Path
from typing import Literal

from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy, check_join
from pasta_lm.journal import Journal
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from pasta_lm.learn.data.layout import RULES
from pasta_lm.learn.data.preferences import ScoreConfig
from pasta_lm.learn.judge import LLMJudge, Progress, load_template
from pasta_lm.recipe import check_choice, check_not_ignored, check_one_of, check_positive
from pasta_lm.strategies import APAR_POSITIONS, PASTA
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.strategies.model import Servers

MAX_RISE = 0.03  # the default of ``train.max_own_text_rise``
BY_RULE = "auto"  # ``loss.beta`` by BoNBoN's rule for the number of samples


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model to train; ``[model]``."""

    base: str  # Model folder or hub id.


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The training data: files of annotated answers; ``[data]``."""

    file: str | tuple[str, ...]  # One file, or several whose records are shuffled together.
    exclude: str | tuple[str, ...] = ()  # Files of ids, one a line or JSONL, that are held out.
    own_text: str | None = None
    """File of ids: these records, the base's own answers, are held out, and measured untagged."""
    plain: bool = False  # Strip the tags, as Baseline-SFT needs it.
    rule: str | None = None  # Learn the answers as a baseline does: ``apar`` or ``sot``.
    turns: Literal["last", "all"] = "last"
    """Answers of a conversation that are learnt: ``all`` makes an example of each."""
    max_tokens: int = 4096  # Maximum number of tokens in a forward pass; examples are never cut.

    def __post_init__(self) -> None:
        check_positive("data", self, "max_tokens")
        if self.file == ():
            raise UsageError("data.file names no file")
        if self.rule is not None:
            check_choice("data.rule", self.rule, list(RULES))
            check_not_ignored("data.rule", self.plain, "it rewrites answers with tags")

    @property
    def paths(self) -> list[Path]:
        return _paths(self.file)

    @property
    def exclude_paths(self) -> list[Path]:
        own_text = [] if self.own_text is None else [Path(self.own_text)]
        return _paths(self.exclude) + own_text

    @property
    def trained_strategy(self) -> str:
        return self.rule or PASTA  # a rule has the name of its strategy


def _paths(names: str | tuple[str, ...]) -> list[Path]:
    return [Path(name) for name in ((names,) if isinstance(names, str) else names)]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole table ``[train]``: the output, the optimiser, and what a model learns."""

    out: str  # Folder of the checkpoints, the log and, under ``model``, the trained model.
    save: Literal["merged", "adapter"] = "merged"  # A whole model or an adapter, from ``[lora]``.
    dtype: Literal["float32", "bfloat16"] | None = None
    """Saved weights and frozen ones; None: as the base was saved, frozen ones float32."""
    log_steps: int = 10  # Steps between two rows of the log.
    save_steps: int = 500  # Steps between two checkpoints; the last two are kept.
    max_own_text_rise: float = MAX_RISE
    """Nats a token by which ``data.own_text`` may become less likely; more stops the training."""
    steps: int | None = None  # Optimiser steps; exactly one of this and ``epochs``.
    epochs: float | None = None  # Passes over all packs.
    learning_rate: float = 1e-5  # Highest learning rate of AdamW.
    tag_learning_rate: float | None = None
    """Learning rate of the rows of the tag pieces; None: ``learning_rate``."""
    freeze_old_rows: bool = False  # Keep the rows of old tokens, which no adapter can hold.
    decision_weight: float = 1.0
    """Weight of main's decisions and of the ends of blocks; other labels weigh 1."""
    first_promise_weight: float | None = None
    """Weight of an answer's first promise; None: ``decision_weight``."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # The rate after the warmup.
    warmup: float = 0.0  # Share of the steps in which the learning rate grows.
    accumulate: int = 1  # Packs of one step; each label, or pair, weighs as in one large pack.
    workers: int = 0  # Data loader processes.
    mixed_precision: bool = False
    """Matrix products, and frozen weights by default, in bfloat16 where that is fast (GPU, AMX)."""
    seed: int = 0  # Random seed of the order of the data and of new weights.
    checkpointing: bool | None = None
    """Recompute each layer in the backward pass to save memory; None: above a billion weights."""
    positions: Literal["predict", "continue", "oracle"] = "predict"
    """Positions of main after a promise and at a sync."""
    join: Literal["shared", "recompute"] = "shared"
    """``recompute`` needs positions ``continue``; stock servers then decode the model exactly."""
    thoughts: Literal["none", "context", "loss"] = "none"
    """Thoughts of the records: left out, read before the answer, or learnt with it."""

    def __post_init__(self) -> None:
        check_one_of("train", steps=self.steps, epochs=self.epochs)
        check_join(Join(self.join), PositionStrategy(self.positions))
        if not 0 <= self.warmup < 1:  # from 1 on it would be a number of steps
            raise UsageError("train.warmup must be at least 0 and below 1")
        keys = ("steps", "epochs", "learning_rate", "accumulate", "tag_learning_rate")
        check_positive("train", self, *keys, "decision_weight", "first_promise_weight")
        check_positive("train", self, "log_steps", "save_steps", "max_own_text_rise")
        has_warmup = self.warmup and self.schedule == "constant"
        check_not_ignored("train.warmup", has_warmup, "a constant rate does not grow")

    def num_steps(self, num_packs: int) -> int:
        return self.steps or ceil((self.epochs or 1) * ceil(num_packs / self.accumulate))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters, trained beside frozen weights."""

    rank: int = 16  # Rank of the product of two matrices that each layer gets.
    alpha: float = 32.0  # Scale of the adapter's output: alpha / rank.
    dropout: float = 0.0  # Share of an adapter's inputs that are left out in training.
    targets: tuple[str, ...] = ()  # Layers with an adapter; empty: all but the output matrix.
    trained_tokens: Literal["tags", "none"] = "tags"  # Embedding rows that learn as well.

    def __post_init__(self) -> None:
        check_positive("lora", self, "rank", "alpha")
        if not 0 <= self.dropout < 1:
            raise UsageError("lora.dropout must be at least 0 and below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """A recipe of supervised finetuning."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    lora: LoraConfig | None = None  # None: all weights are trained.

    def __post_init__(self) -> None:
        check_stage_one(self.train, self.lora, self.data.trained_strategy)
        is_unread = self.train.max_own_text_rise != MAX_RISE and self.data.own_text is None
        check_not_ignored("train.max_own_text_rise", is_unread, "there is no data.own_text")


def check_stage_one(train: TrainConfig, lora: LoraConfig | None, strategy: str) -> None:
    has_tag_rate = train.tag_learning_rate is not None
    is_frozen = lora is not None and lora.trained_tokens == "none"
    check_not_ignored("train.tag_learning_rate", has_tag_rate and is_frozen, "no rows learn")
    if strategy == sot.NAME:
        weighs = train.decision_weight != 1 or train.first_promise_weight is not None
        check_not_ignored("train.decision_weight", weighs, "points have no decisions of main")
        check_not_ignored("train.thoughts", train.thoughts != "none", "points have none")
    freezes = train.freeze_old_rows and lora is not None
    check_not_ignored("train.freeze_old_rows", freezes, "[lora] freezes them in any case")
    if train.save == "adapter" and lora is None:
        raise UsageError('train.save = "adapter" needs a table [lora]')
    if strategy != PASTA and train.positions != APAR_POSITIONS:
        reason = f"{strategy} makes no promises: positions {train.positions!r} need their lengths"
        raise UsageError(reason, hint=f'train.positions = "{APAR_POSITIONS}"')


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConfig:
    """The models that stage two begins with; ``[model]``."""

    base: str  # Pasta-SFT: samples in round one, learns, and is the reference of all rounds.
    baseline: str | None = None  # Baseline-SFT, whose answers are compared with the samples.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsConfig:
    """Annotated data whose prompts are sampled and whose answers are compared with the samples."""

    file: str  # Annotated answers.
    num_prompts: int | None = None  # Prompts of a round; None: the file divided among them.
    seed: int = 0  # Random seed of the order of the prompts.

    def __post_init__(self) -> None:
        check_positive("data.records", self, "num_prompts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsConfig:
    """The training data: a file of pairs, or pairs made from samples; ``[data]``."""

    file: str | None = None  # Pairs, instead of samples.
    records: RecordsConfig | None = None  # Prompts to sample.
    max_tokens: int = 4096  # Maximum tokens of a forward pass; a pair counts both answers.

    def __post_init__(self) -> None:
        check_positive("data", self, "max_tokens")
        check_one_of("data", file=self.file, records=self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsConfig:
    """How answers are sampled; ``[rollouts]``."""

    samples: int = 10  # Samples of a prompt; a pair is the best and the worst of them.
    temperature: float = 1.0  # Sampling temperature of text and tags.
    max_tokens: int = 1024  # Maximum tokens of an answer, over all threads.
    pool_tokens: int = 65_536  # KV cache size of the sampling engine, in tokens.
    dtype: Literal["float32", "bfloat16"] | None = None
    """Weights of the sampling engine; None: float32 on a CPU, else as the model was saved."""
    servers: Servers | None = None  # Stock servers that sample; None: the model is loaded.

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise UsageError("rollouts.samples must be at least 2: of one sample none is better")
        check_positive("rollouts", self, "temperature", "max_tokens", "pool_tokens")


TEMPLATES = {"confidence": "stated-confidence-v1", "logprobs": "one-token-v1"}
"""The prompt template of each method of ``[judge]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig(Endpoint):
    """The model, or the file, that compares samples with other answers; ``[judge]``."""

    TABLE = "judge"
    file: str | None = None  # Verdicts on what ``--write-pairs`` wrote; no model is asked.
    base_url: str = ""  # Ends in ``/v1``; several servers of the model are separated by commas.
    model: str = ""  # As the servers name it.
    method: Literal["confidence", "logprobs"] = "confidence"
    """Stated ``confidence``, as in the paper; or ``logprobs`` of one token, as AlpacaEval 2."""
    journal: str | None = None  # File of the replies; None: ``replies.jsonl`` in ``train.out``.
    max_missing: float = 0.1  # Maximum share of comparisons without a verdict.

    def __post_init__(self) -> None:
        Endpoint.__post_init__(self)
        if not 0 <= self.max_missing < 1:
            raise UsageError("judge.max_missing must be at least 0 and below 1")
        for key in fields(self) if self.file is not None else ():
            is_ignored = key.name != "file" and getattr(self, key.name) != key.default
            check_not_ignored(f"judge.{key.name}", is_ignored, "judge.file has the verdicts")
        if self.file is None and not (self.model and self.base_url):
            missing = "base_url" if self.model else "model"
            raise UsageError(f"judge.{missing} is missing", hint="or give judge.file, of verdicts")


def judge_of(
    config: JudgeConfig, out: Path, progress: Progress = lambda done, total, spent: None
) -> LLMJudge:
    check_not_ignored("judge.file", config.file is not None, "here a model is asked")
    journal = Journal(Path(config.journal) if config.journal else out / "replies.jsonl")
    return LLMJudge(
        config.model, load_template(TEMPLATES[config.method]), journal,
        lambda: ChatClient(config), config.max_missing, progress,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """BoNBoN's loss over pairs; ``[loss]``."""

    alpha: float = 0.005  # Weight of the likelihood of the better answer.
    beta: float | str = BY_RULE
    """The target margin is 1 / (2 beta); ``auto``: BoNBoN's rule for the number of samples."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError("loss.alpha must be between 0 and 1")
        if isinstance(self.beta, float):
            check_positive("loss", self, "beta")
        else:
            check_choice("loss.beta", self.beta, (BY_RULE, "a number"))

    def for_samples(self, num_samples: int) -> LossConfig:
        """Return the loss with a number for ``beta``, by BoNBoN's rule where it is ``auto``.

        For the best and the worst of n samples that is 1 / (2 (n - 1) H(n - 1)), H the harmonic
        number. Source: Gui, Garbacea and Veitch, arXiv 2406.00832. PASTA leaves beta open.
        """
        if isinstance(self.beta, float):
            return self
        harmonic = sum(1 / k for k in range(1, num_samples))
        return replace(self, beta=1 / (2 * (num_samples - 1) * harmonic))


@dataclass(frozen=True, kw_only=True)
class PreferenceTrainConfig(TrainConfig):
    """A whole table ``[train]``; ``steps`` and ``epochs`` are those of a round."""

    learning_rate: float = 5e-7  # Highest learning rate of AdamW; the paper's for 7B.
    rounds: int = 2
    """Rounds of sampling and training; each begins with the model of the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceConfig:
    """A recipe of preference optimisation."""

    model: StartConfig
    data: PairsConfig
    train: PreferenceTrainConfig
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    score: ScoreConfig | None = None
    judge: JudgeConfig | None = None
    loss: LossConfig = field(default_factory=LossConfig)
    lora: LoraConfig | None = None  # None: all weights are trained.

    def __post_init__(self) -> None:
        check_positive("train", self.train, "rounds")
        of_stage_one = {
            "train.tag_learning_rate": self.train.tag_learning_rate is not None,
            "train.freeze_old_rows": self.train.freeze_old_rows,
            "train.decision_weight": self.train.decision_weight != 1,
            "train.first_promise_weight": self.train.first_promise_weight is not None,
            "train.save": self.train.save != "merged",
            "train.thoughts": self.train.thoughts != "none",
            "train.max_own_text_rise": self.train.max_own_text_rise != MAX_RISE,
        }
        for key, is_set in of_stage_one.items():
            check_not_ignored(key, is_set, "it belongs to stage one")
        if self.data.file is None:
            if self.score is None:
                raise UsageError("[score] is missing: samples need a quality_weight")
            if self.judge is None:
                reason = "[judge] is missing: it compares the samples with other answers"
                hint = "name model and base_url of an API, or a file of verdicts"
                raise UsageError(reason, hint=hint)
            if self.model.baseline is None:
                reason = "model.baseline is missing: its answers are compared with the samples"
                hint = "name the model that was trained on the same data without tags"
                raise UsageError(reason, hint=hint)
            return
        check_not_ignored("[score]", self.score is not None, "data.file has scores of its own")
        check_not_ignored("[judge]", self.judge is not None, "data.file has scores of its own")
        others = self.rollouts != RolloutsConfig(samples=self.rollouts.samples)
        check_not_ignored("[rollouts]", others, "data.file has the pairs; only samples is read")
        check_not_ignored("model.baseline", self.model.baseline is not None, "nothing is sampled")
        if self.train.rounds != 1:
            raise UsageError("a file of pairs has one round: give [train] rounds = 1")
