"""What a recipe of ``pasta annotate`` may say, and which of it one output folder is bound to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pasta_lm.annotate.filters import Bounds
from pasta_lm.annotate.sources import SourceConfig
from pasta_lm.annotate.teacher import read_prompt
from pasta_lm.errors import UsageError
from pasta_lm.remote.budget import Prices
from pasta_lm.remote.client import Endpoint

TEACHER, MARKDOWN_RULE = "teacher", "markdown_rule"
ANNOTATORS = (TEACHER, MARKDOWN_RULE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """Which model annotates, where it is, and what it costs."""

    base_url: str
    model: str
    api_key_env: str | None = None
    """Name of the environment variable with the key; the key itself is in no file."""
    temperature: float = 0.0
    timeout_s: float = 120.0
    max_in_flight: int = 32
    """Requests at once, at most; a run begins with few and halves them on a 429."""
    input_price: float | None = None
    """US dollars for a million tokens that are sent."""
    output_price: float | None = None
    """US dollars for a million tokens that come back."""

    def __post_init__(self) -> None:
        """Check what single keys cannot say."""
        if (self.input_price is None) != (self.output_price is None):
            raise UsageError("teacher.input_price and teacher.output_price go together")
        for key in ("timeout_s", "max_in_flight"):
            if getattr(self, key) <= 0:
                raise UsageError(f"teacher.{key} must be above 0")

    @property
    def endpoint(self) -> Endpoint:
        """Return where it is asked."""
        return Endpoint(
            base_url=self.base_url,
            model=self.model,
            api_key_env=self.api_key_env,
            timeout_s=self.timeout_s,
        )

    @property
    def prices(self) -> Prices:
        """Return what it costs."""
        return Prices(self.input_price, self.output_price)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """What is kept."""

    least_words: int = 5
    most_words: int = 640
    max_answer_characters: int = 20_000
    """Longer answers are skipped: a copy of them would be cut off."""

    @property
    def bounds(self) -> Bounds:
        """Return the bounds of a block."""
        return Bounds(self.least_words, self.most_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """Where everything goes."""

    folder: str
    """Holds the journal, and what is derived from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateConfig:
    """A whole recipe."""

    source: SourceConfig
    output: OutputConfig
    annotator: str = TEACHER
    """``teacher``, a model; or ``markdown_rule``, a heuristic that reads layout, not meaning."""
    teacher: TeacherConfig | None = None
    filters: FilterConfig = field(default_factory=FilterConfig)

    def __post_init__(self) -> None:
        """Check what single keys cannot say."""
        if self.annotator not in ANNOTATORS:
            known = ", ".join(ANNOTATORS)
            raise UsageError(f"annotator is {self.annotator!r}", hint=f"one of {known}")
        if self.annotator == TEACHER and self.teacher is None:
            raise UsageError(
                "annotator 'teacher' needs a table [teacher]", hint="with base_url and model"
            )
        if self.annotator != TEACHER and self.teacher is not None:
            raise UsageError(f"[teacher] would be ignored: annotator is {self.annotator!r}")

    def bound(self) -> dict[str, Any]:
        """Return what must not change while an output folder is filled.

        Prices, time-outs and how many requests are in flight may change between runs.
        """
        found: dict[str, Any] = {
            "annotator": self.annotator,
            "source": asdict(self.source),
            "filters": asdict(self.filters),
        }
        if self.teacher is not None:
            prompt = read_prompt()
            found["teacher"] = {
                "model": self.teacher.model,
                "temperature": self.teacher.temperature,
                "prompt": f"{prompt.version} {prompt.digest}",
            }
        return found
