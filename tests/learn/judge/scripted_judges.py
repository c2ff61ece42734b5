"""Judges whose verdicts follow a rule, and which count what they were asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random

from pasta_lm.learn.judge import Comparison

FIRST, SECOND, TIE = 0.8, -0.8, 0.0


class RuleJudge:
    def __init__(self, rule: Callable[[Comparison], float | None]) -> None:
        self.rule = rule
        self.asked: list[Comparison] = []

    def compare(self, comparisons: Sequence[Comparison]) -> list[float | None]:
        self.asked += comparisons
        return [self.rule(one) for one in comparisons]


def always_first() -> RuleJudge:
    return RuleJudge(lambda _: FIRST)


def always_tied() -> RuleJudge:
    return RuleJudge(lambda _: TIE)


def perfect(better: Collection[str]) -> RuleJudge:
    return RuleJudge(lambda one: FIRST if one.first in better else SECOND)


def longer() -> RuleJudge:
    def rule(one: Comparison) -> float:
        first, second = len(one.first), len(one.second)
        return TIE if first == second else FIRST if first > second else SECOND

    return RuleJudge(rule)


def by_chance(seed: int) -> RuleJudge:
    """Return a judge that does not read: each verdict is drawn, and so is its confidence."""
    draws = Random(seed)

    def rule(_: Comparison) -> float:
        sign = 1 if draws.random() < 0.5 else -1
        return sign * draws.uniform(0.5, 1)

    return RuleJudge(rule)
