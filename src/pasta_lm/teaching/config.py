"""The recipe of ``pasta teach``: own answers, their annotation, both stages, and the measures."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy, check_join
from pasta_lm.learn.annotate.recipe import MARKDOWN_RULE, TEACHER, TeacherConfig
from pasta_lm.learn.train.config import JudgeConfig
from pasta_lm.recipe import check_not_ignored, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersConfig:
    """The model's own answers; ``[answers]``."""

    file: str | None = None  # Instructions with ``id`` and ``instruction``; None: the package's.
    num: int = 2000  # Instructions that are answered.
    num_held_out: int = 100  # The last ones of ``file``, to measure with; the package's are marked.
    temperature: float | None = None
    """Sampling temperature; None: ``generation_config.json``'s settings, else 0.3."""
    max_tokens: int = 500  # Maximum tokens of an answer; longer ones are left out.
    thoughts: Literal["none", "context", "loss"] = "none"
    """Whether it thinks before its answers, and training reads or learns the thoughts."""
    max_thinking_tokens: int | None = None
    """Maximum tokens of a thought, which ends there; None: ``max_tokens``."""
    seed: int = 0  # Random seed of the sampling.
    in_flight: int | None = None  # Answers decoded at a time; None: 64, on a CPU 16.

    def __post_init__(self) -> None:
        check_positive("answers", self, "num", "num_held_out", "max_tokens", "in_flight")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationConfig:
    """The annotator of the blocks; ``[annotation]``."""

    annotator: Literal["markdown_rule", "teacher"] = MARKDOWN_RULE
    """``markdown_rule``, which reads layout and question; or ``teacher``, a model on a server."""
    teacher: TeacherConfig | None = None  # The teacher's server and prompt.

    def __post_init__(self) -> None:
        if self.annotator == TEACHER and self.teacher is None:
            raise UsageError("annotation.annotator 'teacher' needs [annotation.teacher]")
        is_ignored = self.annotator != TEACHER and self.teacher is not None
        check_not_ignored("[annotation.teacher]", is_ignored, f"it is {self.annotator!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixConfig:
    """Training data besides the own answers; ``[data]``."""

    file: tuple[str, ...] = ()  # Files of annotated answers.
    exclude: tuple[str, ...] = ()  # Files of ids that are held out.
    max_tokens: int = 2048  # Maximum tokens of a forward pass.

    def __post_init__(self) -> None:
        check_positive("data", self, "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningConfig:
    """Stage one, of both models; ``[train]``."""

    weights: Literal["adapter", "all"] = "adapter"  # What learns; ``all`` is for small models.
    passes: int = 150  # Forward passes of ``data.max_tokens`` tokens.
    learning_rate: float = 2e-4  # Highest learning rate of AdamW.
    tag_learning_rate: float | None = None
    """Learning rate of the tag pieces' rows; None: 2e-3 beside adapters, else 1e-3."""
    decision_weight: float = 3.0
    """Weight of main's decisions and of the ends of blocks; other labels weigh 1."""
    first_promise_weight: float = 10.0  # Weight of an answer's first promise.
    max_own_text_rise: float = 0.03
    """Nats a token by which own answers may become less likely; more stops the training."""
    rank: int = 16  # Rank of the adapters; their alpha is twice as much.
    positions: Literal["predict", "continue"] = "continue"
    """Positions of main after a promise and at a sync."""
    join: Literal["shared", "recompute"] = "recompute"
    """Stock servers, and models with recurrent layers, need ``continue`` and ``recompute``."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Frozen and saved weights; None: by the machine, and as the base was saved."""
    checkpointing: bool | None = None
    """Recompute each layer in the backward pass to save memory; None: above a billion weights."""
    save_steps: int = 20  # Steps between two checkpoints.
    seed: int = 0  # Random seed of the order of the data.

    def __post_init__(self) -> None:
        keys = ("passes", "learning_rate", "tag_learning_rate", "decision_weight", "rank")
        check_positive("train", self, *keys, "first_promise_weight", "max_own_text_rise")
        check_positive("train", self, "save_steps")
        check_join(Join(self.join), PositionStrategy(self.positions))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTwoConfig:
    """Stage two; ``[preference]``."""

    judge: JudgeConfig  # The model that compares samples with the baseline's answers.
    rounds: int = 2  # Rounds of sampling and training.
    num_prompts: int = 100  # Prompts of a round; fewer if there are too few usable answers.
    samples: int = 10  # Samples of a prompt; a pair is the best and the worst of them.
    quality_weight: float = 4.0  # Weight of quality in a score: the paper's lambda.
    steps: int = 30  # Optimiser steps of a round.
    learning_rate: float | None = None  # Its highest; None: a tenth of that of stage one.

    def __post_init__(self) -> None:
        check_positive("preference", self, "rounds", "num_prompts", "steps", "learning_rate")
        check_not_ignored("preference.judge.file", self.judge.file, "teaching waits for no reader")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuresConfig:
    """The evaluation at the end; ``[measures]``."""

    num_prompts: int = 80  # Prompts of a set.
    max_tokens: int = 512  # Maximum tokens of an answer.
    num_timed: int = 6  # Prompts whose answers are timed alone.
    num_unmasked: int = 15  # Prompts that are answered without the mask of legal tags.
    num_references: int = 50  # Annotated answers for the cost of restricted visibility.
    alpaca: str | None = None  # AlpacaEval's instructions, a file of yours.
    ifeval: str | None = None  # IFEval's prompts, a file of yours.

    def __post_init__(self) -> None:
        check_positive("measures", self, "num_prompts", "max_tokens", "num_references")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeachConfig:
    """A recipe of ``pasta teach``; without any key it is the default one."""

    answers: AnswersConfig = field(default_factory=AnswersConfig)
    annotation: AnnotationConfig = field(default_factory=AnnotationConfig)
    data: MixConfig = field(default_factory=MixConfig)
    train: LearningConfig = field(default_factory=LearningConfig)
    preference: StageTwoConfig | None = None  # None: no stage two, which needs a judge.
    measures: MeasuresConfig = field(default_factory=MeasuresConfig)

    def __post_init__(self) -> None:
        if self.preference is not None and self.answers.thoughts != "none":
            hint = "leave [preference] out, or answers.thoughts"
            raise UsageError("stage two learns answers without thoughts", hint=hint)

    def for_servers(self) -> TeachConfig:
        return replace(self, train=replace(self.train, positions="continue", join="recompute"))

    def on(self, device: str) -> TeachConfig:
        in_flight = self.answers.in_flight or (16 if device == "cpu" else 64)
        return replace(self, answers=replace(self.answers, in_flight=in_flight))
