"""The recipe of ``pasta annotate``, and the settings that an output folder is bound to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from pasta_lm.engines.servers.dialects import server_urls
from pasta_lm.errors import UsageError
from pasta_lm.learn.annotate.filters import BlockBounds
from pasta_lm.learn.annotate.own_answers import USABLE, AnswerConfig
from pasta_lm.learn.annotate.sources import SourceConfig
from pasta_lm.learn.annotate.teacher import read_prompt
from pasta_lm.learn.chat.client import Endpoint
from pasta_lm.recipe import check_not_ignored

TEACHER: Final = "teacher"
MARKDOWN_RULE: Final = "markdown_rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig(Endpoint):
    """The model that annotates."""

    temperature: float = 0.0
    """Of its replies."""

    @staticmethod
    def table() -> str:
        """Return the name of the table."""
        return TEACHER


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """Which answers are sent, and which annotations are kept."""

    least_words: int = 5
    """Minimum of a block."""
    most_words: int = 640
    """Maximum of a block."""
    max_answer_characters: int = 20_000
    """Longer answers are skipped: a copy of them would be cut off."""

    @property
    def bounds(self) -> BlockBounds:
        """Return the bounds of a block."""
        return BlockBounds(self.least_words, self.most_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """The folder of the journal and of all files made from it."""

    folder: str
    """A new folder, or that of the run to continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateConfig:
    """A whole recipe."""

    source: SourceConfig | None = None
    """The answers; None: those of ``answers``."""
    answers: AnswerConfig | None = None
    """A model that answers instructions first; None: ``source`` has the answers."""
    output: OutputConfig
    annotator: Literal["teacher", "markdown_rule"] = "teacher"
    """``teacher``, a model on a server, or ``markdown_rule``, a heuristic that reads layout and
    question, not meaning."""
    teacher: TeacherConfig | None = None
    filters: FilterConfig = field(default_factory=FilterConfig)

    def __post_init__(self) -> None:
        if (self.source is None) == (self.answers is None):
            raise UsageError("a recipe needs exactly one of [source] and [answers]")
        if self.annotator == TEACHER and self.teacher is None:
            raise UsageError("annotator 'teacher' needs a table [teacher]", hint="with model")
        is_ignored = self.annotator != TEACHER and self.teacher is not None
        check_not_ignored("[teacher]", is_ignored, f"annotator is {self.annotator!r}")

    @property
    def rows(self) -> SourceConfig:
        """Return the source of the answers to annotate."""
        if self.source is not None:
            return self.source
        assert self.answers is not None
        file = str(Path(self.answers.out) / USABLE)
        return SourceConfig(file=file, columns="pairs", name="own answers")

    def taught_by(self, addresses: str) -> AnnotateConfig:
        """Return the recipe with the teacher on other servers, whose URLs a comma separates.

        Raises:
            UsageError: there is no teacher.
        """
        if self.teacher is None:
            raise UsageError(
                f"annotator {self.annotator!r} cannot use --engine: it asks no model",
                hint="leave it out",
            )
        urls = ",".join(f"{url}/v1" for url in server_urls(addresses))
        if not urls:
            raise UsageError("no server is named", hint="for example http://localhost:8000")
        return replace(self, teacher=replace(self.teacher, base_url=urls))

    def settings(self) -> dict[str, object]:
        """Return the settings that must not change while an output folder is filled.

        Prices, time-outs and the number of requests in flight may change between runs.
        """
        settings: dict[str, object] = {
            "annotator": self.annotator,
            "source": asdict(self.rows),
            "filters": asdict(self.filters),
        }
        if self.teacher is not None:
            settings["teacher"] = {
                "model": self.teacher.model,
                "temperature": self.teacher.temperature,
                "prompt": read_prompt().label,
            }
        return settings
