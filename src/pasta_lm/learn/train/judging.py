"""The judge of stage two and its table of the recipe: a language model behind an API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pasta_lm.engines.servers.request_pace import RetryPolicy
from pasta_lm.errors import UsageError
from pasta_lm.journal import Journal
from pasta_lm.learn.chat.client import ChatClient, Endpoint
from pasta_lm.learn.chat.pool import require_prices
from pasta_lm.learn.judge.judge import Judge, load_template
from pasta_lm.learn.judge.llm_judge import LLMJudge, Progress, missing_to_json

REPLIES = "replies.jsonl"
TEMPLATES = {"confidence": "stated-confidence-v1", "logprobs": "one-token-v1"}
"""Method -> the prompt template that asks for its verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig(Endpoint):
    """The judge that compares samples with other answers; ``[judge]`` of a recipe."""

    method: Literal["confidence", "logprobs"] = "confidence"
    """Stated ``confidence``, as in the paper; or ``logprobs`` of one token, as AlpacaEval 2."""
    journal: str | None = None
    """File of the replies, which recipes may share; None: ``replies.jsonl`` in ``train.out``."""
    max_missing: float = 0.1
    """Maximum share of comparisons without a verdict."""
    cost_limit: float | None = None
    """Hard limit, in US dollars, on the cost of all replies in the journal."""

    def __post_init__(self) -> None:
        Endpoint.__post_init__(self)
        if not 0 <= self.max_missing < 1:
            raise UsageError("judge.max_missing must be at least 0 and below 1")
        if self.cost_limit is not None and self.cost_limit < 0:
            raise UsageError("judge.cost_limit is below 0")
        require_prices(self.prices, self.cost_limit)

    @staticmethod
    def table() -> str:
        """Return the name of the table."""
        return "judge"


def judge_of(
    config: JudgeConfig,
    out: Path,
    progress: Progress = lambda done, total, spent: None,
    *,
    policy: RetryPolicy | None = None,
) -> LLMJudge:
    """Return the judge of a recipe.

    Args:
        config: The model and its endpoint.
        out: Folder of the journal of replies, unless the recipe names a file.
        progress: Called after each reply.
        policy: Of retries.

    Raises:
        InputError: the journal of replies is damaged.
    """
    return LLMJudge(
        config.model,
        load_template(TEMPLATES[config.method]),
        Journal(Path(config.journal) if config.journal else out / REPLIES),
        lambda: ChatClient(config, policy=policy),
        max_missing=config.max_missing,
        prices=config.prices,
        cost_limit_usd=config.cost_limit,
        progress=progress,
    )


def judged_by(judge: Judge) -> dict[str, Any]:
    """Return the judge's entry in the log of a round, with the prompts that lack a verdict."""
    if not isinstance(judge, LLMJudge):
        return {"judge": type(judge).__name__}
    return {
        "judge": judge.name,
        "is_scripted": judge.is_scripted,
        "no_verdict": missing_to_json(judge.missing, "prompts"),
        "spent": str(judge.spending()),
    }
