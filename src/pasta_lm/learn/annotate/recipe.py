"""The recipe of ``pasta annotate``, and the settings that an output folder is bound to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from pasta_lm.engines.servers.dialects import server_urls
from pasta_lm.errors import UsageError
from pasta_lm.learn.annotate.filters import Bounds
from pasta_lm.learn.annotate.sources import SourceConfig
from pasta_lm.learn.annotate.teacher import read_prompt
from pasta_lm.learn.chat.budget import Prices
from pasta_lm.learn.chat.client import Endpoint
from pasta_lm.recipe import check_choice, check_not_ignored, check_positive

TEACHER, MARKDOWN_RULE, FORCED = "teacher", "markdown_rule", "forced"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """The model that annotates, its server and its prices."""

    base_url: str
    """Of one server; or of several with the same model, separated by commas."""
    model: str
    api_key_env: str | None = None
    """Name of the environment variable with the key; the key itself is in no file."""
    temperature: float = 0.0
    timeout_s: float = 120.0
    max_in_flight: int = 32
    """Bound on concurrent requests; a run begins with few and halves their number on a 429."""
    input_price: float | None = None
    """US dollars per million tokens of prompts."""
    output_price: float | None = None
    """US dollars per million tokens of replies."""

    def __post_init__(self) -> None:
        """Validate combinations of keys."""
        if (self.input_price is None) != (self.output_price is None):
            raise UsageError("teacher.input_price and teacher.output_price go together")
        check_positive("teacher", self, "timeout_s", "max_in_flight")

    @property
    def endpoint(self) -> Endpoint:
        """Return the model and its server."""
        keys = ("base_url", "model", "api_key_env", "timeout_s")
        return Endpoint(**{key: getattr(self, key) for key in keys})

    @property
    def prices(self) -> Prices:
        """Return the prices of the model."""
        return Prices(self.input_price, self.output_price)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How forced annotation sums the log-probabilities of a proposal.

    With ``text=1``, ``block_nats=0`` and ``rule_nats=0`` the score is the log-likelihood.
    """

    text: float = 0.1
    """Of the answer's text; decisions (promise, end of a block, sync, end) have 1."""
    block_nats: float = 2.0
    """Added for each block: the margin by which a promise may be less likely than text."""
    rule_nats: float = 0.0
    """Added to the proposal that the Markdown rule makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedConfig:
    """The model of forced annotation, and how it scores."""

    model: str
    """A folder or hub id; it was taught PASTA-LANG."""
    dtype: str | None = None
    weights: Weights = field(default_factory=Weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """Which answers are sent, and which annotations are kept."""

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
    """The folder of the journal and of all files made from it."""

    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotateConfig:
    """A whole recipe."""

    source: SourceConfig
    output: OutputConfig
    annotator: str = TEACHER
    """``teacher``, a model on a server; ``forced``, a taught model that chooses where tags stand;
    or ``markdown_rule``, a heuristic that reads layout and question, not meaning."""
    teacher: TeacherConfig | None = None
    forced: ForcedConfig | None = None
    filters: FilterConfig = field(default_factory=FilterConfig)

    def __post_init__(self) -> None:
        """Validate combinations of keys."""
        check_choice("annotator", self.annotator, (TEACHER, MARKDOWN_RULE, FORCED))
        tables = {
            TEACHER: (self.teacher, "with base_url and model"),
            FORCED: (self.forced, "with model"),
        }
        for name, (table, keys) in tables.items():
            if self.annotator == name and table is None:
                raise UsageError(f"annotator {name!r} needs a table [{name}]", hint=keys)
            is_ignored = self.annotator != name and table is not None
            check_not_ignored(f"[{name}]", is_ignored, f"annotator is {self.annotator!r}")

    def taught_by(self, addresses: str) -> AnnotateConfig:
        """Return the recipe with the teacher on other servers, whose URLs a comma separates.

        Raises:
            UsageError: there is no teacher.
        """
        if self.teacher is None:
            reason = (
                "it reads the model's probabilities under its own mask, which servers do not give"
                if self.annotator == FORCED
                else "it asks no model"
            )
            raise UsageError(
                f"annotator {self.annotator!r} cannot use --engine: {reason}", hint="leave it out"
            )
        urls = ",".join(f"{one}/v1" for one in server_urls(addresses))
        if not urls:
            raise UsageError("no server is named", hint="for example http://localhost:8000")
        return replace(self, teacher=replace(self.teacher, base_url=urls))

    def settings(self) -> dict[str, object]:
        """Return the settings that must not change while an output folder is filled.

        Prices, time-outs and the number of requests in flight may change between runs.
        """
        found: dict[str, object] = {
            "annotator": self.annotator,
            "source": asdict(self.source),
            "filters": asdict(self.filters),
        }
        if self.forced is not None:
            found["forced"] = asdict(self.forced)
        if self.teacher is not None:
            found["teacher"] = {
                "model": self.teacher.model,
                "temperature": self.teacher.temperature,
                "prompt": read_prompt().label,
            }
        return found
