"""Record files of scripted models that answer with a given structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lab.tests.tasks.reading import plain
from pasta_lab.evaluate.records import GradedAnswer, write_answers
from pasta_lab.evaluate.tasks import graded
from pasta_lab.tasks import Task, make
from pasta_lab.tasks.gold import gold
from pasta_lm.engines.request import Answer
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.language.document import Document
from pasta_lm.learn.data.answer_record import AnswerRecord

FAMILIES = ("takings", "running_takings", "profiles")
Structured = Callable[[Task], Document]


def tasks(num: int = 3, families: Sequence[str] = FAMILIES) -> list[Task]:
    return [make(family, "test", seed) for seed in range(num) for family in families]


def answers(
    asked: Sequence[Task], structured: Structured, strategy: str, *, is_timed: bool
) -> list[GradedAnswer]:
    """Return what a model with this structure would answer."""
    found = (ScriptedEngine(structured(task)).answer() for task in asked)
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
    structured: Structured = gold,
    *,
    num: int = 3,
    num_timed: int = 1,
    strategy: str = "pasta",
) -> str:
    """Write what ``pasta evaluate tasks --records`` would, and return where."""
    rows = [
        row
        for asked, is_timed in ((tasks(num), False), (tasks(num_timed), True))
        for name, marks in (("sequential", plain), (strategy, structured))
        for row in answers(asked, marks, name, is_timed=is_timed)
    ]
    write_answers(path, rows)
    return str(path)
