"""Judges whose verdicts follow a rule, and which count what they were asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

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


def perfect(better: Collection[str]) -> RuleJudge:
    return RuleJudge(lambda one: FIRST if one.first in better else SECOND)


def longer() -> RuleJudge:
    def rule(one: Comparison) -> float:
        first, second = len(one.first), len(one.second)
        return TIE if first == second else FIRST if first > second else SECOND

    return RuleJudge(rule)
