"""Record files of scripted models that answer as an annotator marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.tests.tasks.reading import annotate
from pasta_lab.evaluate.records import GradedAnswer, write_answers
from pasta_lab.evaluate.tasks import graded
from pasta_lab.tasks import Task, make
from pasta_lm.engines.request import Answer
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.view.scripted import ScriptedEngine

FAMILIES = ("takings", "running_takings", "profiles")


def tasks(num: int = 3, families: Sequence[str] = FAMILIES) -> list[Task]:
    return [make(family, "test", seed) for seed in range(num) for family in families]


def answers(
    asked: Sequence[Task], annotator: str, strategy: str, *, is_timed: bool
) -> list[GradedAnswer]:
    """Return what a model that marks as an annotator does would answer."""
    found = (ScriptedEngine(annotate(task, annotator)).answer() for task in asked)
    return [
        graded_answer(task, answer, strategy, is_timed=is_timed)
        for task, answer in zip(asked, found, strict=True)
    ]


def graded_answer(
    task: Task, answer: Answer, strategy: str, *, is_timed: bool = False
) -> GradedAnswer:
    """Return what the evaluator makes of an engine's answer to a task."""
    record = AnswerRecord.of(answer, is_timed=is_timed)
    (found,) = graded([task], strategy, [record])
    return found


def write_records(
    path: Path,
    annotator: str = "gold",
    *,
    num: int = 3,
    num_timed: int = 1,
    strategy: str = "pasta",
) -> str:
    """Write what ``pasta evaluate tasks --records`` would, and return where."""
    rows = [
        row
        for asked, is_timed in ((tasks(num), False), (tasks(num_timed), True))
        for name, marks in (("sequential", "plain"), (strategy, annotator))
        for row in answers(asked, marks, name, is_timed=is_timed)
    ]
    write_answers(path, rows)
    return str(path)
