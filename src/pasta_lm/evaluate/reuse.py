"""The baseline's answers from the records of an earlier run, so that many models can share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import InputError
from pasta_lm.evaluate.answered import Answered, read_answers
from pasta_lm.evaluate.answering import Progress, answer_all
from pasta_lm.strategies import sequential
from pasta_lm.tasks.referee import referee_grade
from pasta_lm.tasks.task import Task

if TYPE_CHECKING:
    from pasta_lm.strategies.model import Pasta

NUM_CHECKED = 25
"""Prompts that are decoded again: records do not say whose they are."""
MOST_DIFFERENT = 1
"""Of those, as many answers as rounding may change between two machines."""


def reused(
    path: Path,
    tasks: Sequence[Task],
    baseline: Pasta,
    params: SamplingParams,
    progress: Progress,
) -> list[Answered]:
    """Return sequential answers that a record file has, graded anew, in the order of the tasks.

    Clocks are never taken from there: what is timed is decoded beside the other strategies.

    Args:
        path: What ``pasta evaluate tasks --records`` wrote.
        tasks: What is asked.
        baseline: Whose answers they must be; the first prompts are decoded again.
        params: With which they must have been decoded.
        progress: Told after each batch.

    Raises:
        InputError: it cannot be read, lacks a prompt, or its answers are not the baseline's.
    """
    rows = [one for one in read_answers(path) if one.strategy == sequential.NAME]
    known = {one.task_id: one for one in rows if one.wall_s is None}
    lacking = [task.id for task in tasks if task.id not in known]
    if lacking:
        raise InputError(
            f"{path} has no sequential answer to {len(lacking)} of {len(tasks)} prompts, "
            f"{lacking[0]} first",
            hint="write it with the same --split, --seed and --num-prompts, or more of them",
        )
    first = tasks[:NUM_CHECKED]
    again = answer_all(baseline, first, sequential.NAME, params, progress)
    differ = sum(one.text != known[one.task_id].text for one in again)
    if differ > MOST_DIFFERENT:
        raise InputError(
            f"{path}: {differ} of {len(first)} answers are not the baseline's",
            hint="write it with the same --baseline, --max-tokens, --wordings and --dtype",
        )
    return [replace(known[t.id], grade=referee_grade(t, known[t.id].text)) for t in tasks]
