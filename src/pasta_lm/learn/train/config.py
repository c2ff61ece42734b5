"""The recipe of stage one, supervised finetuning, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal

from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy, check_join
from pasta_lm.learn.data.layout import RULES
from pasta_lm.recipe import check_choice, check_not_ignored, check_one_of, check_positive
from pasta_lm.strategies import apar, pasta
from pasta_lm.strategies import skeleton_of_thought as sot


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomConfig:
    """A model that begins with random weights; ``[model.random]`` of a recipe."""

    architecture: str  # JSON file of a transformers configuration.
    tokenizer: str  # Folder of a tokenizer, such as a model folder.


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model to train: a trained base, or random weights."""

    base: str | None = None  # Model folder or hub id.
    random: RandomConfig | None = None  # Random weights instead.

    def __post_init__(self) -> None:
        check_one_of("model", base=self.base, random=self.random)


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
        """Return the files of ids that are held out."""
        own_text = [] if self.own_text is None else [Path(self.own_text)]
        return _paths(self.exclude) + own_text

    @property
    def trained_strategy(self) -> str:
        if self.rule is None:
            return pasta.NAME
        return sot.NAME if self.rule == sot.NAME else apar.NAME


def _paths(names: str | tuple[str, ...]) -> list[Path]:
    return [Path(name) for name in ((names,) if isinstance(names, str) else names)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Optimiser, schedule and output of a training run."""

    out: str  # Folder of the checkpoints, the log and, under ``model``, the trained model.
    steps: int | None = None  # Optimiser steps; exactly one of this and ``epochs``.
    epochs: float | None = None  # Passes over all packs.
    learning_rate: float = 1e-5  # AdamW's, at its highest.
    tag_learning_rate: float | None = None  # Of the tag pieces' rows; None: as ``learning_rate``.
    freeze_old_rows: bool = False  # Keep the rows of old tokens, which no adapter can hold.
    decision_weight: float = 1.0  # Of main's decisions in the mean loss; other labels weigh 1.
    first_promise_weight: float | None = None  # Of an answer's first promise; None: the same.
    weight_decay: float = 0.0  # AdamW's.
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # Of the rate after the warmup.
    warmup: float = 0.0  # Share of the steps in which the learning rate grows.
    accumulate: int = 1  # Packs of one step.
    workers: int = 0  # Data loader processes.
    positions: Literal["predict", "continue", "oracle", "rotate"] = "predict"
    """Positions of main after a promise and at a sync; ``rotate`` cannot be trained."""
    join: Literal["shared", "recompute"] = "shared"
    """``recompute`` needs positions ``continue``; stock servers then decode the model exactly."""
    thoughts: Literal["none", "context", "loss"] = "none"
    """Thoughts of the records: left out, read before the answer, or learnt with it."""
    save: Literal["merged", "adapter"] = "merged"  # A whole model or an adapter, from ``[lora]``.
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of the saved weights and of frozen ones; None: as the base was saved, frozen ones float32."""
    mixed_precision: bool = False
    """Matrix products, and frozen weights by default, in bfloat16 where that is fast (GPU, AMX)."""
    seed: int = 0  # Of the order of the data and of random weights.
    log_steps: int = 10  # Steps between two rows of the log.
    save_steps: int = 500  # Steps between two checkpoints; the last two are kept.
    max_own_text_rise: float = 0.03
    """Nats a token by which ``data.own_text`` may become less likely; more stops the training."""
    checkpointing: bool | None = None
    """Recompute each layer in the backward pass to save memory; None: above a billion weights."""

    def num_steps(self, num_packs: int) -> int:
        return self.steps or ceil((self.epochs or 1) * ceil(num_packs / self.accumulate))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters, trained beside frozen weights."""

    rank: int = 16  # Of the product of two matrices that each layer gets.
    alpha: float = 32.0  # The adapter's output is scaled by alpha / rank.
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
        check_stage_one(self.model, self.train, self.lora, self.data.trained_strategy)


def check_stage_one(
    model: ModelConfig, train: TrainConfig, lora: LoraConfig | None, strategy: str
) -> None:
    """Raise a UsageError if two keys contradict each other, or one has no effect."""
    has_tag_rate = train.tag_learning_rate is not None
    is_frozen = lora is not None and lora.trained_tokens == "none"
    check_not_ignored("train.tag_learning_rate", has_tag_rate and is_frozen, "no rows learn")
    weighs = train.decision_weight != 1 or train.first_promise_weight is not None
    learns_points = strategy == sot.NAME
    reason = "points have no decisions of main"
    check_not_ignored("train.decision_weight", weighs and learns_points, reason)
    freezes = train.freeze_old_rows and lora is not None
    check_not_ignored("train.freeze_old_rows", freezes, "[lora] freezes them in any case")
    if train.save == "adapter" and lora is None:
        raise UsageError('train.save = "adapter" needs a table [lora]')
    if lora and model.base is None:
        raise UsageError("[lora] needs model.base: random weights must all be trained")
    if strategy != pasta.NAME and train.positions != apar.POSITIONS:
        raise UsageError(
            f"{strategy} makes no promises: positions {train.positions!r} need their lengths",
            hint=f'train.positions = "{apar.POSITIONS}"',
        )
