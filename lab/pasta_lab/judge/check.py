"""A judge's accuracy on pairs with a known winner.

Every pair is judged in both orders, whose log-odds are averaged. A tie counts half. Intervals are
over prompts. Replies are stored as they come, so the same command continues a stopped run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from pasta_lab.judge.damage import Damage
from pasta_lab.judge.pairs import DamageConfig, Pair, damaged_pairs
from pasta_lm.cli.terminal import Progress, say
from pasta_lm.errors import PastaError, cause
from pasta_lm.journal import Row, write_rows
from pasta_lm.learn.chat.pool import Spending
from pasta_lm.learn.judge import TIE_TOLERANCE, Judge, LLMJudge, same_winner
from pasta_lm.learn.train.config import JudgeConfig, judge_of
from pasta_lm.measure.table import ratio, to_json

Figures = dict[str, Any]
MIN_SHARE = 1e-9  # of a verdict in log-odds, which have no value at 0 and 1
MIN_ACCURACY = 0.9
"""On planted damage; a judge with less gives no headline."""
TIE = 0.5
PAIRS, REPORT = "pairs.jsonl", "report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCheckRecipe:
    """A recipe of ``pasta-lab judge check``."""

    judge: JudgeConfig
    """As ``[judge]`` of stage two."""
    damage: DamageConfig


def run_check(recipe: JudgeCheckRecipe, out: Path, show: Progress) -> Figures:
    """Judge all pairs, write the report and the judged pairs into a folder, return the report.

    Raises:
        PastaError: a file cannot be read or written, or the judge fails.
    """

    def progress(done: int, total: int, spent: Spending) -> None:
        show("comparisons judged", done, total, str(spent))

    damaged = damaged_pairs(recipe.damage)
    # Too many missing verdicts refuse the judge; they need not end its check.
    judge = replace(judge_of(recipe.judge, out, progress), max_missing=1.0)
    judged = _judge(judge, damaged.pairs)
    figures = asdict(recipe.damage) | {"num_left_out": damaged.num_left_out}
    report: Figures = {"judge": judge.name, "is_scripted": judge.is_scripted}
    report |= {"damage": figures | damage_figures(judged), "min_accuracy": MIN_ACCURACY}
    report["refused"] = refusals(
        report["damage"], max_missing=recipe.judge.max_missing, is_scripted=judge.is_scripted
    )
    try:
        write_rows(out / PAIRS, rows_of(judged))
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        (out / REPORT).write_text(text, "utf-8")
    except OSError as exc:
        raise PastaError(f"{out} cannot be written: {cause(exc)}") from exc
    return report


def _judge(judge: LLMJudge, pairs: Sequence[Pair]) -> list[JudgedPair | None]:
    estimate = judge.estimate([order for pair in pairs for order in pair.orders])
    if estimate.num_requests:
        say(f"the judge is to be asked: {estimate}")
    judged = judged_pairs(judge, pairs)
    if judge.failures:
        first = next(iter(judge.failures.values()))
        say(f"{len(judge.failures)} comparisons got no reply: {first}")
    return judged


class JudgedPair(NamedTuple):
    """A pair, and the judge's probabilities that our answer is better."""

    pair: Pair
    ours_first: float
    """In the order in which ours is read first."""
    theirs_first: float
    """That theirs is better if it is read first."""
    ours_wins: float
    """Over both orders."""

    @property
    def is_right(self) -> float:
        """Return 1 if the undamaged answer wins, 0.5 for a tie, else 0."""
        return _accuracy_of(self.ours_wins)

    @property
    def is_right_in_one_order(self) -> float:
        """Return the mean accuracy of the two orders, each by itself."""
        orders = (self.ours_first, 1 - self.theirs_first)
        return fmean(map(_accuracy_of, orders))


def judged_pairs(judge: Judge, pairs: Sequence[Pair]) -> list[JudgedPair | None]:
    """Return the judged pairs in order; None if an order has no verdict."""
    verdicts = judge.compare([order for pair in pairs for order in pair.orders])
    judged: list[JudgedPair | None] = []
    for pair, first, second in zip(pairs, verdicts[::2], verdicts[1::2], strict=True):
        if first is None or second is None:
            judged.append(None)
            continue
        wins = first_wins_of(first), first_wins_of(second)
        judged.append(JudgedPair(pair, *wins, averaged(*wins)))
    return judged


def first_wins_of(verdict: float) -> float:
    """Return a verdict as the probability that the first answer is better."""
    confidence = max(abs(verdict), 0.5)
    return 0.5 if not verdict else confidence if verdict > 0 else 1 - confidence


def averaged(ours_first: float, theirs_first: float) -> float:
    """Return the mean over both orders of the log-odds, in which a lean towards a place cancels."""
    odds = (_log_odds(ours_first) - _log_odds(theirs_first)) / 2
    return 1 / (1 + exp(-odds))


def _log_odds(share: float) -> float:
    share = min(max(share, MIN_SHARE), 1 - MIN_SHARE)
    return log(share / (1 - share))


def rows_of(judged: Iterable[JudgedPair | None]) -> list[Row]:
    """Return the judged pairs as rows for readers; pairs without a verdict are left out."""
    return [
        pair.pair._asdict()
        | {"id": f"{pair.pair.kind}/{pair.pair.id}", "judged": pair.ours_wins}
        | {"ours_first": pair.ours_first, "theirs_first": pair.theirs_first}
        for pair in judged
        if pair is not None
    ]


def damage_figures(judged: Sequence[JudgedPair | None]) -> Figures:
    """Return the accuracy by kind of damage and over all; a kind without a pair is left out."""
    pairs = [pair for pair in judged if pair is not None]
    kinds = {str(kind): [pair for pair in pairs if pair.pair.kind == kind] for kind in Damage}
    return {
        "kinds": {kind: _accuracy(some) for kind, some in kinds.items() if some},
        "overall": _accuracy(pairs),
        "num_missing": len(judged) - len(pairs),
    }


def _accuracy(judged: Sequence[JudgedPair]) -> Figures:
    return {
        "num_pairs": len(judged),
        "accuracy": _over_prompts(judged, lambda pair: pair.is_right),
        "in_one_order": _over_prompts(judged, lambda pair: pair.is_right_in_one_order),
        "order_agreement": _over_prompts(
            judged, lambda pair: float(same_winner(pair.ours_first, pair.theirs_first))
        ),
        "first_place_share": _over_prompts(
            judged, lambda pair: (pair.ours_first + pair.theirs_first) / 2
        ),
    }


def refusals(damage: Figures, *, max_missing: float, is_scripted: bool = False) -> list[str]:
    """Return the reasons why a judge with such ``damage_figures`` may give no headline."""
    reasons = ["its replies follow a script"] if is_scripted else []
    num_missing, num_judged = damage["num_missing"], damage["overall"]["num_pairs"]
    num_pairs = num_missing + num_judged
    if num_missing > max_missing * num_pairs:
        reasons.append(f"{num_missing} of {num_pairs} damaged pairs have no verdict")
    accuracy = damage["overall"]["accuracy"]
    if accuracy is None or accuracy["mean"] < MIN_ACCURACY:
        share = "none" if accuracy is None else f"{accuracy['mean']:.3f}"
        reasons.append(f"right on {share} of planted damage, below {MIN_ACCURACY}")
    return reasons


def _over_prompts(judged: Iterable[JudgedPair], value: Callable[[JudgedPair], float]) -> Any:
    """Return the mean over pairs with its interval; pairs of one prompt are drawn together."""
    sums: dict[str, list[float]] = {}
    for pair in judged:
        sums.setdefault(pair.pair.prompt, []).append(value(pair))
    return to_json(ratio(list(map(sum, sums.values())), list(map(len, sums.values()))))


def _accuracy_of(ours_wins: float) -> float:
    return TIE if abs(ours_wins - TIE) < TIE_TOLERANCE else float(ours_wins > TIE)
