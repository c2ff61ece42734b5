"""The recipe of ``pasta evaluate alpaca``, and the settings that a run is stored with."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pasta_lm.engines.servers.request_pace import without_password
from pasta_lm.errors import UsageError
from pasta_lm.measure.answering import System, check_served
from pasta_lm.models.names import BUILTIN
from pasta_lm.recipe import check_choice
from pasta_lm.strategies import sequential
from pasta_lm.strategies.model import Servers, baseline_of
from pasta_lm.strategies.requests import STRATEGIES


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRecipe:
    """The judge's endpoint; without a model nothing is judged."""

    model: str | None = None
    base_url: str | None = None
    """Up to and including ``/v1``."""
    api_key_env: str | None = None
    """The environment variable with the key."""
    input_price: float | None = None
    """US dollars for a million tokens."""
    output_price: float | None = None
    template: str = "stated-confidence-v1"
    """A built-in prompt (stated-confidence-v1, one-token-v1), or a file FILE.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaInputs:
    """The settings that a recipe and a stored run share."""

    instructions: str = "tatsu-lab/alpaca_eval"
    """A file with 'instruction', or owner/name or owner/name:file of the hub."""
    limit: int | None = None
    """The first so many instructions; None: all."""
    reference: str | None = None
    """A file of answers that are the baseline of quality, in AlpacaEval's form."""
    difficulty: str | None = None
    """AlpacaEval's table of the instructions' difficulty; None: not known."""
    gamed: str | None = None
    """AlpacaEval's verdicts on the gamed reference."""
    num_timed: int | None = None
    """The first so many instructions are decoded one at a time; None: all."""
    max_tokens: int = 2048
    """Of an answer, all threads together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaRecipe(AlpacaInputs):
    """The recipe of ``pasta evaluate alpaca``."""

    model: str | None = None
    baseline: str | None = None
    """Whose sequential answers are the baseline; None: the built-in one, or the model itself."""
    strategies: tuple[str, ...] = ("sequential", "pasta")
    systems: tuple[str, ...] = ()
    """More systems, each NAME=STRATEGY:MODEL."""
    judge: JudgeRecipe = JudgeRecipe()
    pool_tokens: int = 65_536
    """Cache entries of each model's engine."""
    dtype: str | None = None
    device: str | None = None
    servers: Servers | None = None
    """Stock servers that hold the model, which is then its own baseline; None: it is loaded."""

    def settings(self) -> AlpacaSettings:
        """Return the settings of the run; the sequential baseline is always its first system.

        Raises:
            UsageError: a system or a combination of settings is wrong.
        """
        ours, judge = self.model or BUILTIN, self.judge
        baseline = self.baseline or (baseline_of(ours) if self.servers is None else ours)
        systems = [System(sequential.NAME, sequential.NAME, baseline)]
        systems += [System(name, name, ours) for name in self.strategies if name != sequential.NAME]
        for spec in self.systems:
            name, _, rest = spec.partition("=")
            strategy, _, model = rest.partition(":")
            if not name or not strategy or not model:
                raise UsageError(f"--system {spec!r} is not of the form NAME=STRATEGY:MODEL")
            systems.append(System(name, strategy, model))
        for item in systems:
            check_choice("strategies", item.strategy, STRATEGIES)
        check_served(self.servers, self.model, (item.model for item in systems))
        return AlpacaSettings(
            **{field.name: getattr(self, field.name) for field in fields(AlpacaInputs)},
            systems=tuple(systems),
            judge_model=judge.model,
            judge_url=None if judge.base_url is None else without_password(judge.base_url),
            template=judge.template,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpacaSettings(AlpacaInputs):
    """The settings that a run's answers and judgements depend on; they are stored with it."""

    systems: tuple[System, ...]
    baseline: str = sequential.NAME
    """A system: the baseline of speed, and of quality if there is no reference."""
    judge_model: str | None = None
    """The judge, as its endpoint knows it; None: nothing is judged."""
    judge_url: str | None = None
    template: str = "stated-confidence-v1"

    def __post_init__(self) -> None:
        """Validate combinations of keys.

        Raises:
            UsageError: two systems have one name, the baseline is no system, or one of two
                settings that belong together is missing.
        """
        names = [system.name for system in self.systems]
        if len({*names}) < len(names):
            raise UsageError("a system is named twice", hint="--system NAME=STRATEGY:MODEL")
        if self.baseline not in names:
            raise UsageError(
                f"no system answers as the baseline {self.baseline!r}",
                hint=f"the systems are {', '.join(names)}",
            )
        if (self.difficulty is None) != (self.gamed is None):
            raise UsageError("difficulty and gamed go together")
        if (self.judge_model is None) != (self.judge_url is None):
            raise UsageError("judge.model and judge.base_url go together")
