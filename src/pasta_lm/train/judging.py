"""Who judges the samples of a recipe, and what is written down of how they judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pasta_lm.journal import Journal
from pasta_lm.judging.judge import Judge
from pasta_lm.judging.llm_judge import LLMJudge, Progress, describe_missing, missing_to_json
from pasta_lm.judging.template import load_template
from pasta_lm.remote.client import ChatClient
from pasta_lm.remote.pace import Pace
from pasta_lm.remote.retry import RetryPolicy
from pasta_lm.tasks.task import Task
from pasta_lm.train.judge_config import GRADER, METHODS
from pasta_lm.train.preference_config import PreferenceConfig
from pasta_lm.train.task_judge import GraderJudge

REPLIES = "replies.jsonl"


def judge_of(
    config: PreferenceConfig,
    tasks: Sequence[Task],
    progress: Progress = lambda done, total, spent: None,
    policy: RetryPolicy | None = None,
) -> Judge:
    """Return the judge of a recipe.

    Args:
        config: The recipe.
        tasks: What the training grader knows.
        progress: Told after each reply.
        policy: Of retries.

    Raises:
        InputError: the journal of replies is damaged.
    """
    judge = config.judge
    if not judge.is_remote:
        return GraderJudge(tasks)
    assert judge.model is not None
    path = Path(judge.journal) if judge.journal else Path(config.train.out) / REPLIES
    return LLMJudge(
        judge.model,
        load_template(METHODS[judge.method]),
        Journal(path),
        lambda: ChatClient(judge.endpoint, pace=Pace(judge.max_in_flight), policy=policy),
        max_missing=judge.max_missing,
        prices=judge.prices,
        cost_limit_usd=judge.cost_limit,
        progress=progress,
    )


def judged_by(judge: Judge) -> dict[str, Any]:
    """Return what the log of a round says of its judge, prompts without a verdict by name."""
    if not isinstance(judge, LLMJudge):
        return {"judge": GRADER}
    return {
        "judge": judge.name,
        "is_scripted": judge.is_scripted,
        "no_verdict": missing_to_json(judge.missing, "prompts"),
        "spent": str(judge.spending()),
    }


def without_verdict(judge: Judge) -> str | None:
    """Return in words on how many comparisons a judge gave no verdict; None: on all it did."""
    if not isinstance(judge, LLMJudge) or not judge.missing:
        return None
    return f"{judge.name} gave no verdict: {describe_missing(judge.missing)}"
