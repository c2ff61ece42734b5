"""The recipe of ``pasta judge check``, and its run: pairs are made, judged, counted and written.

Verdicts are stored as they come, so the same command continues a run that was stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pasta_lab.evaluate.judge_check import (
    MIN_ACCURACY,
    JudgedPair,
    damage_figures,
    judged_pairs,
    preference_figures,
    refusals,
    rows_of,
)
from pasta_lab.evaluate.judge_pairs import (
    DamageConfig,
    Pair,
    PreferencesConfig,
    damaged_pairs,
    stored_pairs,
)
from pasta_lab.judge.config import JudgeConfig, judge_of
from pasta_lm.cli.terminal import Progress, say
from pasta_lm.errors import PastaError, UsageError, cause
from pasta_lm.journal import Journal, write_rows
from pasta_lm.learn.chat.budget import Spending
from pasta_lm.learn.judge.judge import Judge
from pasta_lm.learn.judge.llm_judge import LLMJudge
from pasta_lm.learn.judge.stored import StoredJudge

VERDICTS, PAIRS, REPORT = "verdicts.jsonl", "pairs.jsonl", "report.json"
Report = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCheckRecipe:
    """A recipe of ``pasta judge check``."""

    judge: JudgeConfig
    """As ``[judge]`` of stage two."""
    damage: DamageConfig | None = None
    preferences: PreferencesConfig | None = None

    def __post_init__(self) -> None:
        if self.damage is None and self.preferences is None:
            raise UsageError(
                "there is nothing to check the judge with",
                hint="--answers FILE.jsonl, or [preferences] in the recipe",
            )


def run_check(recipe: JudgeCheckRecipe, out: Path, show: Progress) -> Report:
    """Let a judge compare what it has not yet compared, and return what ``--json`` prints.

    Writes the report and the judged pairs into the run's folder.

    Raises:
        PastaError: a file cannot be read or written, or the judge cannot be asked.
    """
    damaged = recipe.damage and damaged_pairs(recipe.damage)
    stored = recipe.preferences and stored_pairs(recipe.preferences)
    some = [*(damaged.pairs if damaged else ()), *(stored.pairs if stored else ())]
    judge, name = _judge(recipe.judge, out, show)
    judged = _ask(judge, some)
    num_damaged = len(damaged.pairs) if damaged else 0
    is_scripted = isinstance(judge, LLMJudge) and judge.is_scripted
    report: Report = {"judge": name, "is_scripted": is_scripted}
    report |= {"damage": None, "preferences": None, "min_accuracy": MIN_ACCURACY}
    if recipe.damage and damaged:
        counts = {"num_answers": damaged.num_answers, "num_left_out": damaged.num_left_out}
        figures = damage_figures(judged[:num_damaged])
        report["damage"] = asdict(recipe.damage) | counts | figures
    if recipe.preferences and stored:
        by = {"judged_by": stored.judge, "num_left_out": stored.num_left_out}
        figures = preference_figures(judged[num_damaged:])
        report["preferences"] = asdict(recipe.preferences) | by | figures
    missing = recipe.judge.max_missing
    report["refused"] = refusals(report["damage"], max_missing=missing, is_scripted=is_scripted)
    _write(out, report, judged)
    return report


def _judge(config: JudgeConfig, out: Path, show: Progress) -> tuple[Judge, str]:
    """Return the judge of a recipe, which stores its verdicts and keeps both orders apart."""

    def progress(done: int, total: int, spent: Spending | None = None) -> None:
        show("comparisons judged", done, total, str(spent or ""))

    judge = judge_of(config, str(out), progress)
    if isinstance(judge, LLMJudge):
        # Too many missing verdicts refuse the judge; they need not end its check.
        return replace(judge, averages_orders=False, max_missing=1.0), judge.name
    name: str = getattr(judge, "name", config.kind)
    return StoredJudge(judge, name, Journal(out / VERDICTS), progress), name


def _ask(judge: Judge, pairs: Sequence[Pair]) -> list[JudgedPair | None]:
    if isinstance(judge, LLMJudge):
        estimate = judge.estimate([one for pair in pairs for one in pair.orders])
        if estimate.num_requests:
            say(f"the judge is to be asked: {estimate}")
    judged = judged_pairs(judge, pairs)
    if isinstance(judge, LLMJudge) and judge.failures:
        first = next(iter(judge.failures.values()))
        say(f"{len(judge.failures)} comparisons got no reply: {first}")
    return judged


def _write(out: Path, report: Report, judged: Sequence[JudgedPair | None]) -> None:
    try:
        write_rows(out / PAIRS, rows_of(judged))
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        (out / REPORT).write_text(text, "utf-8")
    except OSError as exc:
        raise PastaError(f"{out} cannot be written: {cause(exc)}") from exc
