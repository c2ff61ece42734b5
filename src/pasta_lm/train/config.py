"""What a recipe of supervised finetuning may say, and which values make sense together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.recipe import read_recipe
from pasta_lm.strategies import apar, pasta
from pasta_lm.strategies import skeleton_of_thought as sot
from pasta_lm.strategies.baselines import APAR_RULES
from pasta_lm.tasks.task import Split
from pasta_lm.train.annotators import ANNOTATORS, APAR_ANNOTATORS, SOT_ANNOTATORS
from pasta_lm.train.checks import above_0, choice, one_of, refuse_ignored

WSD = "warmup_stable_decay"
SCHEDULES = ("linear", "cosine", "constant", WSD)
OPTIMIZERS = ("adamw", "muon")
BEGINNINGS = ("random", "looking_back")
TRAINED_TOKENS = ("tags", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class WiderConfig:
    """How much room a model gets beside its own; ``[model.wider]`` of a recipe."""

    dimensions: int
    """Of the hidden state."""
    heads: int
    """Of attention in each layer, each with keys of its own."""
    neurons: int
    """Of the feed-forward part of each layer."""
    only_new: bool = True
    """Whether weights among the old ones stay as they are; all others learn."""

    def __post_init__(self) -> None:
        """Check what single keys cannot say."""
        for key in ("dimensions", "heads", "neurons"):
            above_0(f"model.wider.{key}", getattr(self, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What is trained: a model folder or hub id, or an architecture with random weights."""

    base: str | None = None
    architecture: str | None = None
    """JSON file of a transformers configuration; the weights begin at random."""
    tokenizer: str | None = None
    """Folder of the tokenizer that goes with ``architecture``."""
    begin: str = "random"
    """Of the random weights: ``looking_back`` gives some heads a beginning."""
    new_tags: bool = False
    """Of a base that has the tag pieces and met none: their rows begin anew."""
    wider: WiderConfig | None = None
    """Of a base: room beside what it has; None: it stays as wide as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    """Data made on the spot by ``pasta_lm.tasks``."""

    annotator: str = "gold"
    split: str = "train"
    seed: int = 0
    few_first: float = 0.0
    """For this share of the steps, prompts of few records only."""
    drills: float = 0.0
    """Share of drills among the tasks at the beginning; it falls to none at the end."""
    drills_first: float = 0.0
    """For this share of the steps, nothing but drills, small ones first."""
    clauses: float = 0.0
    """Share of the drills that ask what a clause means."""
    decision_weight: float = 1.0
    """Of the answer to such a drill, and of the token at which an answer parts from its twin's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """What is learned: a file of annotated data, or generated tasks."""

    file: str | None = None
    tasks: TasksConfig | None = None
    plain: bool = False
    """Strip the tags: the baseline's training."""
    rule: str | None = None
    """Of a file: fork its plain answers anew by a rule of APAR; ``apar`` or ``apar_published``."""
    max_tokens: int = 4096
    """The most that a forward pass may hold; examples are never cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How it is learned."""

    out: str
    """Folder for checkpoints, the log and, under ``model``, the result."""
    steps: int | None = None
    epochs: float | None = None
    learning_rate: float = 1e-5
    other_learning_rate: float | None = None
    """Of embeddings, norms and biases under ``muon``; the same rate where not given."""
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    schedule: str = "linear"
    warmup: float = 0.0
    """Share of the steps in which the rate grows."""
    decay: float = 0.0
    """Share of the steps in which the rate falls to zero, under ``warmup_stable_decay``."""
    accumulate: int = 1
    workers: int = 0
    """Processes that draw and encode data beside the one that trains."""
    clip: float = 1.0
    positions: str = "predict"
    dtype: str = "float32"
    """Of the saved weights and, on a GPU, of the arithmetic; master weights are float32."""
    mixed_precision: bool = False
    """On a CPU: matrix products in bfloat16 where the processor has a unit for them (AMX)."""
    seed: int = 0
    log_steps: int = 10
    save_steps: int = 500
    tensorboard: bool = False
    checkpointing: bool = False
    """Compute each layer a second time on the way back rather than keep what it computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters that learn beside frozen weights.

    Source: E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2022.
    """

    rank: int = 16
    alpha: float = 32.0
    """What an adapter adds is scaled by alpha / rank."""
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    """Names of the matrices that get an adapter; none named: all but the output matrix."""
    trained_tokens: str = "tags"
    """Rows of the embeddings that learn as well: those of the tag pieces, or ``none``."""

    def __post_init__(self) -> None:
        """Check what single keys cannot say."""
        above_0("lora.rank", self.rank)
        above_0("lora.alpha", self.alpha)
        choice("lora.trained_tokens", self.trained_tokens, TRAINED_TOKENS)
        if not 0 <= self.dropout < 1:
            raise UsageError("lora.dropout must be at least 0 and below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """A whole recipe of supervised finetuning."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig = field()
    lora: LoraConfig | None = None
    """None: all weights learn."""

    def __post_init__(self) -> None:
        """Check what single keys cannot say."""
        one_of("model", base=self.model.base, architecture=self.model.architecture)
        one_of("data", file=self.data.file, tasks=self.data.tasks)
        one_of("train", steps=self.train.steps, epochs=self.train.epochs)
        if self.model.architecture and not self.model.tokenizer:
            raise UsageError("[model] architecture needs a tokenizer beside it")
        if self.data.tasks and self.train.steps is None:
            raise UsageError("generated tasks never end: give [train] steps, not epochs")
        choice("model.begin", self.model.begin, BEGINNINGS)
        check_train(self.train)
        check_lora(self.lora, self.train)
        if self.lora and self.model.base is None:
            raise UsageError("[lora] needs model.base: beside random weights nothing is learned")
        self._check_wider()
        above_0("data.max_tokens", self.data.max_tokens)
        if self.data.tasks:
            choice("data.tasks.annotator", self.data.tasks.annotator, list(ANNOTATORS))
            choice("data.tasks.split", self.data.tasks.split, [str(s) for s in Split])
            for key in ("few_first", "drills", "drills_first", "clauses"):
                if not 0 <= getattr(self.data.tasks, key) <= 1:
                    raise UsageError(f"data.tasks.{key} must be between 0 and 1")
            above_0("data.tasks.decision_weight", self.data.tasks.decision_weight)
        model = self.model
        has_beginning = model.base and model.begin != "random"
        refuse_ignored("model.begin", has_beginning, "base has its weights")
        has_new = model.new_tags and model.base is None
        refuse_ignored("model.new_tags", has_new, "random weights are new")
        refuse_ignored("model.tokenizer", model.base and model.tokenizer, "base brings its own")
        if self.data.rule is not None:
            choice("data.rule", self.data.rule, list(APAR_RULES))
            ignored = self.data.plain or self.data.tasks is not None
            refuse_ignored("data.rule", ignored, "it forks the answers of a file")
        if taught_by(self.data) != pasta.NAME and self.train.positions != apar.POSITIONS:
            name = self.data.rule or (self.data.tasks and self.data.tasks.annotator)
            raise UsageError(
                f"{name} makes no promises: positions {self.train.positions!r} need their lengths",
                hint=f'train.positions = "{apar.POSITIONS}"',
            )

    def _check_wider(self) -> None:
        wider = self.model.wider
        if wider is None:
            return
        if self.model.base is None or self.lora is not None:
            raise UsageError("[model.wider] is for a base whose weights learn, without [lora]")
        if wider.only_new and (self.train.optimizer != "adamw" or self.train.weight_decay):
            raise UsageError(
                "model.wider.only_new keeps the old weights, which muon and weight_decay change "
                "without a gradient",
                hint='train.optimizer = "adamw", without weight_decay; or only_new = false',
            )


def check_train(train: TrainConfig) -> None:
    """Check how a stage trains.

    Raises:
        UsageError: a value means nothing, or another one makes it meaningless.
    """
    one_of("train", steps=train.steps, epochs=train.epochs)
    if train.schedule == WSD and not (train.steps and 0 < train.decay < 1):
        raise UsageError(f"{WSD} needs [train] steps, and decay between 0 and 1")
    choice("train.schedule", train.schedule, SCHEDULES)
    choice("train.optimizer", train.optimizer, OPTIMIZERS)
    choice("train.dtype", train.dtype, ("float32", "bfloat16"))
    choice("train.positions", train.positions, [str(s) for s in PositionStrategy])
    for key in ("warmup", "decay"):
        if not 0 <= getattr(train, key) < 1:  # from 1 on it would be a number of steps
            raise UsageError(f"train.{key} must be at least 0 and below 1")
    for key in ("steps", "epochs", "learning_rate", "accumulate", "log_steps", "save_steps"):
        above_0(f"train.{key}", getattr(train, key))
    has_other_rate = train.optimizer == "adamw" and train.other_learning_rate is not None
    refuse_ignored("train.other_learning_rate", has_other_rate, "adamw has one rate")
    refuse_ignored("train.decay", train.decay and train.schedule != WSD, f"it belongs to {WSD}")
    grows = train.warmup and train.schedule == "constant"
    refuse_ignored("train.warmup", grows, "a constant rate does not grow")


def check_lora(lora: LoraConfig | None, train: TrainConfig) -> None:
    """Check that a stage can train by adapters as it says.

    Raises:
        UsageError: its optimiser is made for whole matrices.
    """
    if lora is not None and train.optimizer == "muon":
        raise UsageError("[lora] is trained by adamw: muon is for whole matrices from nothing")


def taught_by(data: DataConfig) -> str:
    """Return the strategy that a model is taught by these data."""
    if data.rule is not None:
        return apar.NAME
    if data.tasks is None or data.plain:
        return pasta.NAME
    names = {apar.NAME: APAR_ANNOTATORS, sot.NAME: SOT_ANNOTATORS}
    return next((name for name, some in names.items() if data.tasks.annotator in some), pasta.NAME)


def read_config(path: Path, changes: Sequence[str] = ()) -> SftConfig:
    """Read a recipe of supervised finetuning, with some keys changed (see ``read_recipe``).

    Raises:
        UsageError: it cannot be read, or something in it is unknown or wrong.
    """
    return read_recipe(path, SftConfig, changes)
