"""What a recipe of stage two may say of who judges: the training grader, or a language model."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pasta_lm.errors import UsageError
from pasta_lm.remote.budget import Prices, require_prices
from pasta_lm.remote.client import Endpoint
from pasta_lm.train.checks import above_0, choice, refuse_ignored

GRADER, LLM = "grader", "llm"
METHODS = {"confidence": "stated-confidence-v1", "logprobs": "one-token-v1"}
"""How a verdict is read -> the template that asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """Who compares samples with other answers."""

    kind: str = GRADER
    """``grader``, which knows the tasks; or ``llm``, a model behind HTTP."""
    model: str | None = None
    """As its endpoint knows it."""
    base_url: str | None = None
    """Up to and with ``/v1``."""
    api_key_env: str | None = None
    """Name of the environment variable with the key; the key itself is in no file."""
    method: str = "confidence"
    """``confidence``, stated, as in the paper; or ``logprobs``, of one token, as AlpacaEval 2."""
    journal: str | None = None
    """File of the replies, which recipes may share; ``replies.jsonl`` in ``train.out`` if None."""
    max_missing: float = 0.1
    """The largest share of comparisons that may lack a verdict."""
    timeout_s: float = 120.0
    max_in_flight: int = 32
    """Requests at once, at most."""
    input_price: float | None = None
    """US dollars for a million tokens that are sent."""
    output_price: float | None = None
    """US dollars for a million tokens that come back."""
    cost_limit: float | None = None
    """US dollars that all replies in the journal may cost; the run stops before it is passed."""

    def __post_init__(self) -> None:
        """Check what single keys cannot say."""
        choice("judge.kind", self.kind, (GRADER, LLM))
        choice("judge.method", self.method, list(METHODS))
        given = [one.name for one in fields(self)[1:] if getattr(self, one.name) != one.default]
        if self.kind == GRADER:
            refuse_ignored(f"judge.{''.join(given[:1])}", given, "the grader asks nobody")
            return
        for key in ("model", "base_url"):
            if not getattr(self, key):
                raise UsageError(f"judge.{key} is missing", hint="a judge of kind 'llm' needs it")
        if not 0 <= self.max_missing < 1:
            raise UsageError("judge.max_missing must be at least 0 and below 1")
        for key in ("timeout_s", "max_in_flight"):
            above_0(f"judge.{key}", getattr(self, key))
        if (self.input_price is None) != (self.output_price is None):
            raise UsageError("judge.input_price and judge.output_price go together")
        for key in ("input_price", "output_price", "cost_limit"):
            if (getattr(self, key) or 0.0) < 0:
                raise UsageError(f"judge.{key} is below 0")
        require_prices(self.prices, self.cost_limit)

    @property
    def is_remote(self) -> bool:
        """Tell whether somebody is asked."""
        return self.kind == LLM

    @property
    def prices(self) -> Prices:
        """Return what the model costs."""
        return Prices(self.input_price, self.output_price)

    @property
    def endpoint(self) -> Endpoint:
        """Return where the model is asked."""
        assert self.model is not None
        assert self.base_url is not None
        return Endpoint(
            base_url=self.base_url,
            model=self.model,
            api_key_env=self.api_key_env,
            timeout_s=self.timeout_s,
        )
