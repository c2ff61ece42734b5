"""What a recipe may say: a TOML file, every key checked, each mistake named with a suggestion."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.tasks.annotators import ANNOTATORS
from pasta_lm.tasks.task import Split

T = TypeVar("T")

WSD = "warmup_stable_decay"
SCHEDULES = ("linear", "cosine", "constant", WSD)
OPTIMIZERS = ("adamw", "muon")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What is trained: a model folder or hub id, or an architecture with random weights."""

    base: str | None = None
    architecture: str | None = None
    """JSON file of a transformers configuration; the weights begin at random."""
    tokenizer: str | None = None
    """Folder of the tokenizer that goes with ``architecture``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    """Data made on the spot by ``pasta_lm.tasks``."""

    annotator: str = "gold"
    split: str = "train"
    seed: int = 0
    few_first: float = 0.0
    """For this share of the steps, prompts of few records only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """What is learned: a file of annotated data, or generated tasks."""

    file: str | None = None
    tasks: TasksConfig | None = None
    plain: bool = False
    """Strip the tags: the baseline's training."""
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
    seed: int = 0
    log_steps: int = 10
    save_steps: int = 500
    tensorboard: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """A whole recipe of supervised finetuning."""

    model: ModelConfig
    data: DataConfig
    train: TrainConfig = field()

    def __post_init__(self) -> None:
        """Check what single keys cannot say."""
        _one_of("model", base=self.model.base, architecture=self.model.architecture)
        _one_of("data", file=self.data.file, tasks=self.data.tasks)
        _one_of("train", steps=self.train.steps, epochs=self.train.epochs)
        if self.model.architecture and not self.model.tokenizer:
            raise UsageError("[model] architecture needs a tokenizer beside it")
        if self.data.tasks and self.train.steps is None:
            raise UsageError("generated tasks never end: give [train] steps, not epochs")
        if self.train.schedule == WSD and not (self.train.steps and 0 < self.train.decay < 1):
            raise UsageError(f"{WSD} needs [train] steps, and decay between 0 and 1")
        _choice("train.schedule", self.train.schedule, SCHEDULES)
        _choice("train.optimizer", self.train.optimizer, OPTIMIZERS)
        _choice("train.dtype", self.train.dtype, ("float32", "bfloat16"))
        _choice("train.positions", self.train.positions, [str(s) for s in PositionStrategy])
        for key in ("warmup", "decay"):
            if not 0 <= getattr(self.train, key) < 1:  # from 1 on it would be a number of steps
                raise UsageError(f"train.{key} must be at least 0 and below 1")
        for key in ("steps", "epochs", "learning_rate", "accumulate", "log_steps", "save_steps"):
            _above_0(f"train.{key}", getattr(self.train, key))
        _above_0("data.max_tokens", self.data.max_tokens)
        if self.data.tasks:
            _choice("data.tasks.annotator", self.data.tasks.annotator, list(ANNOTATORS))
            _choice("data.tasks.split", self.data.tasks.split, [str(s) for s in Split])
            if not 0 <= self.data.tasks.few_first <= 1:
                raise UsageError("data.tasks.few_first must be between 0 and 1")
        self._refuse_ignored()

    def _refuse_ignored(self) -> None:
        """Refuse keys that these other keys make meaningless."""
        model, train = self.model, self.train
        is_constant, is_adamw = train.schedule == "constant", train.optimizer == "adamw"
        ignored = {
            "model.tokenizer": (model.base and model.tokenizer, "base brings its own"),
            "train.other_learning_rate": (
                is_adamw and train.other_learning_rate is not None,
                "adamw has one rate",
            ),
            "train.decay": (train.decay and train.schedule != WSD, f"it belongs to {WSD}"),
            "train.warmup": (train.warmup and is_constant, "a constant rate does not grow"),
        }
        for key, (is_ignored, reason) in ignored.items():
            if is_ignored:
                raise UsageError(f"{key} would be ignored: {reason}", hint="leave it out")


def read_config(path: Path) -> SftConfig:
    """Read a recipe.

    Raises:
        UsageError: it cannot be read, or something in it is unknown or wrong.
    """
    return read_recipe(path, SftConfig)


def read_recipe(path: Path, kind: type[T]) -> T:
    """Read a recipe of some stage.

    Args:
        path: A TOML file.
        kind: The dataclass that says what it may hold.

    Raises:
        UsageError: it cannot be read, or something in it is unknown or wrong.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} is no recipe: {exc}") from exc
    return _build(kind, data, "")


def _build(kind: type[T], data: Mapping[str, Any], place: str) -> T:
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise UsageError(f"unknown key {place}{key}", hint=hint)
    values = {key: _value(hints[key], value, f"{place}{key}") for key, value in data.items()}
    for name, spec in known.items():
        if name not in values and spec.default is MISSING and spec.default_factory is MISSING:
            raise UsageError(f"{place}{name} is missing")
    return kind(**values)


def _value(hint: Any, value: Any, place: str) -> Any:
    kinds = set(getattr(hint, "__args__", (hint,))) - {type(None)}
    kind = kinds.pop()
    if hasattr(kind, "__dataclass_fields__"):
        if not isinstance(value, Mapping):
            raise UsageError(f"{place} must be a table")
        return _build(kind, value, f"{place}.")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"{place} must be {kind.__name__}, not {value!r}")
    return value


def _one_of(place: str, **given: object) -> None:
    if sum(value is not None for value in given.values()) != 1:
        raise UsageError(f"[{place}] needs exactly one of {' and '.join(given)}")


def _choice(place: str, value: str, options: tuple[str, ...] | list[str]) -> None:
    if value not in options:
        raise UsageError(f"{place} is {value!r}", hint=f"one of {', '.join(options)}")


def _above_0(place: str, value: float | None) -> None:
    if value is not None and value <= 0:
        raise UsageError(f"{place} must be above 0")
