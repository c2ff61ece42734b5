"""The training grader as a judge: of two answers to a task, the one with the higher grade."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pasta_lm.judging.judge import Comparison, Verdict, Winner
from pasta_lm.tasks.grader import grade
from pasta_lm.tasks.task import Task

TIE = 1e-9
"""Grades that differ by less are the same."""


class GraderJudge:
    """Judges answers to tasks; its confidence is the difference of their grades, from 0 to 1.

    It has no favourite place, so both orders give the same. Never the referee: what is reported is
    graded by a grader that no training has met.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        """Keep the tasks whose answers will be compared."""
        self._tasks = {task.id: task for task in tasks}
        self._grades: dict[tuple[str, str], float] = {}

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Return a verdict on each comparison, in order.

        Raises:
            KeyError: a comparison is of no task that was given.
        """
        return [self._verdict(comparison) for comparison in comparisons]

    def _verdict(self, comparison: Comparison) -> Verdict:
        first = self._grade(comparison.prompt_id, comparison.first)
        second = self._grade(comparison.prompt_id, comparison.second)
        if abs(first - second) < TIE:
            return Verdict(Winner.TIE, 0.0)
        return Verdict(Winner.FIRST if first > second else Winner.SECOND, abs(first - second))

    def _grade(self, task_id: str, text: str) -> float:
        key = (task_id, text)
        if key not in self._grades:
            self._grades[key] = grade(self._tasks[task_id], text)
        return self._grades[key]
