"""The recipe of ``pasta teach``: what is asked, how it is annotated, learned and measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pasta_lm.errors import UsageError
from pasta_lm.learn.annotate.recipe import MARKDOWN_RULE, TEACHER, TeacherConfig
from pasta_lm.learn.train.judging import JudgeConfig
from pasta_lm.recipe import check_not_ignored, check_positive

MAX_WHOLE = 400_000_000
"""Weights up to which all are trained by default; larger models get adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersConfig:
    """The model's own answers; ``[answers]``."""

    file: str | None = None
    """Instructions, JSON lines with ``id`` and ``instruction``; None: those of the project."""
    num: int = 2000
    """Instructions that are answered."""
    num_held_out: int = 100
    """Instructions that only measure; of the project's own, those of its held-out file."""
    temperature: float = 0.3
    max_tokens: int = 500
    seed: int = 0
    in_flight: int | None = None
    """Answers that are decoded at the same time; None: 64, on a CPU 16."""

    def __post_init__(self) -> None:
        check_positive("answers", self, "num", "num_held_out", "max_tokens", "in_flight")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationConfig:
    """What marks the blocks; ``[annotation]``."""

    annotator: Literal["teacher", "markdown_rule"] = MARKDOWN_RULE
    """The rule agrees best with reading of all that needs no teacher, see docs/annotation.md."""
    teacher: TeacherConfig | None = None

    def __post_init__(self) -> None:
        if self.annotator == TEACHER and self.teacher is None:
            raise UsageError("annotation.annotator 'teacher' needs [annotation.teacher]")
        is_ignored = self.annotator != TEACHER and self.teacher is not None
        check_not_ignored("[annotation.teacher]", is_ignored, f"it is {self.annotator!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixConfig:
    """What is learned beside the own answers; ``[data]``."""

    file: tuple[str, ...] | None = None
    """Annotated answers; None: those of the project that were annotated by reading."""
    exclude: tuple[str, ...] = ()
    max_tokens: int = 2048
    """Of one forward pass."""

    def __post_init__(self) -> None:
        check_positive("data", self, "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningConfig:
    """Stage one, of both models; ``[train]``."""

    weights: Literal["auto", "all", "adapter"] = "auto"
    """``auto``: all weights of a small model, adapters of a larger one."""
    passes: int = 110
    """Forward passes of ``data.max_tokens`` tokens: what taught SmolLM2-135M."""
    learning_rate: float | None = None
    """None: 1e-3 of adapters, 2e-4 of all weights."""
    tag_learning_rate: float | None = None
    """None: 2e-3 beside adapters, 1e-3 beside all weights."""
    decision_weight: float = 5.0
    rank: int = 64
    positions: Literal["predict", "continue"] = "predict"
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of frozen and of saved weights; None: float32, on a GPU bfloat16."""
    checkpointing: bool = False
    save_steps: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        keys = ("passes", "learning_rate", "tag_learning_rate", "decision_weight", "rank")
        check_positive("train", self, *keys, "save_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTwoConfig:
    """Stage two on decisions; ``[preference]``."""

    rounds: int = 0
    """0: no stage two."""
    num_prompts: int = 100
    """Of one round."""
    num_development: int = 0
    samples: int = 8
    quality_weight: float = 1.0
    steps: int = 30
    learning_rate: float | None = None
    """None: a tenth of that of stage one."""
    judge: JudgeConfig | None = None

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise UsageError("preference.rounds must be at least 0")
        check_positive("preference", self, "num_prompts", "steps")
        if self.rounds and self.judge is None:
            raise UsageError("[preference.judge] is missing: it compares the samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuresConfig:
    """What is measured at the end; ``[measures]``."""

    num_prompts: int = 80
    """Of each set."""
    max_tokens: int = 512
    num_timed: int = 6
    num_unmasked: int = 15
    alpaca: str | None = None
    """AlpacaEval's instructions, a file of yours."""
    ifeval: str | None = None
    """IFEval's prompts, a file of yours."""
    reader: str | None = None
    """A model that reads the answers."""

    def __post_init__(self) -> None:
        check_positive("measures", self, "num_prompts", "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeachConfig:
    """A recipe of ``pasta teach``; without any key it is the default one."""

    answers: AnswersConfig = field(default_factory=AnswersConfig)
    annotation: AnnotationConfig = field(default_factory=AnnotationConfig)
    data: MixConfig = field(default_factory=MixConfig)
    train: LearningConfig = field(default_factory=LearningConfig)
    preference: StageTwoConfig = field(default_factory=StageTwoConfig)
    measures: MeasuresConfig = field(default_factory=MeasuresConfig)

    def trains_all(self, num_weights: int) -> bool:
        """Return whether all weights of a model of this size are trained."""
        by_size = num_weights <= MAX_WHOLE
        return by_size if self.train.weights == "auto" else self.train.weights == "all"
