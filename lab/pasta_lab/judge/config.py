"""Judges of the laboratory by a table of a recipe: language models, here or behind an API, readers.

torch is loaded only for a judge in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Literal

from pasta_lm.engines.servers.request_pace import Pace, RetryPolicy
from pasta_lm.errors import UsageError
from pasta_lm.journal import Journal
from pasta_lm.learn.chat.budget import Prices, require_prices
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from pasta_lm.learn.judge.judge import IN_PROCESS, Judge, load_template
from pasta_lm.learn.judge.likelihood import LikelihoodJudge, Reader
from pasta_lm.learn.judge.llm_judge import LLMJudge, Progress
from pasta_lm.learn.judge.stored import StoredReader
from pasta_lm.recipe import check_not_ignored, check_positive

REPLIES = "replies.jsonl"
TEMPLATES = {"confidence": "stated-confidence-v1", "logprobs": "one-token-v1"}
"""Method -> the prompt template that asks for its verdict."""
KEYS = {
    "local": ("model", "dtype", "method", "journal", "max_missing"),
    "likelihood": ("model", "second_model", "dtype", "guards", "journal"),
    "guards": (),
}
"""Keys that a judge without requests has, besides its kind."""
ONLY_HERE = {"second_model", "dtype", "guards"}
"""Keys of no use to a judge behind an API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """The judge that compares samples with other answers; ``[judge]`` of a recipe."""

    kind: Literal["llm", "local", "likelihood", "guards"] = "llm"
    """``llm``, a model behind an OpenAI-compatible API;
    ``local``, a model in this process; ``likelihood`` under a frozen model, see
    ``LikelihoodJudge``; its ``guards`` alone, to hold a judge against."""
    model: str | None = None
    """As the endpoint names it; of ``local`` and ``likelihood`` a folder, GGUF file or hub id."""
    second_model: str | None = None
    """A second reader for ``likelihood``."""
    guards: bool = True
    """Of ``likelihood``; without them it may show what its readers add, and judge nothing."""
    dtype: str | None = None
    """Of models of this process: float32, bfloat16 or float16; None: float32 on a CPU."""
    base_url: str | None = None
    """Up to and including ``/v1``."""
    api_key_env: str | None = None
    """Name of the environment variable with the key; the key itself is in no file."""
    method: Literal["confidence", "logprobs"] = "confidence"
    """Stated ``confidence``, as in the paper; or ``logprobs`` of one token, as AlpacaEval 2."""
    journal: str | None = None
    """File of the replies, which recipes may share; ``replies.jsonl`` in ``train.out`` if None.
    Of ``likelihood`` the file of the readings; None: they are not stored."""
    max_missing: float = 0.1
    """Maximum share of comparisons without a verdict."""
    timeout_s: float = 120.0
    max_in_flight: int = 32
    """Maximum number of concurrent requests."""
    input_price: float | None = None
    """US dollars for a million input tokens."""
    output_price: float | None = None
    """US dollars for a million output tokens."""
    cost_limit: float | None = None
    """Hard limit, in US dollars, on the cost of all replies in the journal."""

    def __post_init__(self) -> None:
        given = [one.name for one in fields(self)[1:] if getattr(self, one.name) != one.default]
        own = KEYS.get(self.kind, {one.name for one in fields(self)} - ONLY_HERE)
        lost = [f"judge.{name}" for name in given if name not in own]
        check_not_ignored("".join(lost[:1]), lost, _why(self.kind))
        needed: dict[str, tuple[str, ...]] = {"guards": (), "llm": ("model", "base_url")}
        for key in needed.get(self.kind, ("model",)):
            if not getattr(self, key):
                hint = f"a judge of kind {self.kind!r} needs it"
                raise UsageError(f"judge.{key} is missing", hint=hint)
        if not 0 <= self.max_missing < 1:
            raise UsageError("judge.max_missing must be at least 0 and below 1")
        check_positive("judge", self, "timeout_s", "max_in_flight")
        if (self.input_price is None) != (self.output_price is None):
            raise UsageError("judge.input_price and judge.output_price go together")
        for key in ("input_price", "output_price", "cost_limit"):
            if (getattr(self, key) or 0.0) < 0:
                raise UsageError(f"judge.{key} is below 0")
        require_prices(self.prices, self.cost_limit)

    @property
    def prices(self) -> Prices:
        """Return the prices of the model."""
        return Prices(self.input_price, self.output_price)

    @property
    def endpoint(self) -> Endpoint:
        """Return the endpoint of the model."""
        keys = ("base_url", "model", "api_key_env", "timeout_s")
        return Endpoint(**{key: getattr(self, key) for key in keys})


def _why(kind: str) -> str:
    return f"of no use to kind {kind!r}"


def judge_of(
    config: JudgeConfig,
    out: str,
    progress: Progress = lambda done, total, spent: None,
    *,
    policy: RetryPolicy | None = None,
) -> Judge:
    """Return the judge of a recipe: a model, or readers.

    Models of this process are loaded when they are first asked.

    ``progress`` is called after each reply. The journal of replies is in ``out``, the run's folder,
    unless the recipe names another.

    Raises:
        InputError: the journal of replies is damaged.
    """
    if config.kind in {"likelihood", "guards"}:
        return _likelihood(config)
    assert config.model is not None
    is_local = config.kind == IN_PROCESS
    pace = config.max_in_flight
    client = lambda: ChatClient(config.endpoint, pace=Pace(pace), policy=policy)  # noqa: E731
    if is_local:
        from pasta_lm.learn.judge.local import local_client

        client = local_client(config.model, config.dtype)
    return LLMJudge(
        config.model,
        load_template(TEMPLATES["logprobs" if is_local else config.method]),
        Journal(Path(config.journal) if config.journal else Path(out) / REPLIES),
        client,
        max_missing=config.max_missing,
        averages_orders=is_local,
        prices=config.prices,
        cost_limit_usd=config.cost_limit,
        progress=progress,
    )


def _likelihood(config: JudgeConfig) -> LikelihoodJudge:
    from pasta_lm.learn.judge.local import reading_model

    names = [name for name in (config.model, config.second_model) if name]
    load: Callable[[str], Reader] = partial(reading_model, dtype=config.dtype)
    if config.journal:
        journal, own = Journal(Path(config.journal)), cache(load)
        dtype = config.dtype or "default"
        load = lambda name: StoredReader(partial(own, name), f"{name}/{dtype}", journal)  # noqa: E731
    return LikelihoodJudge(names, load, has_guards=config.guards)
