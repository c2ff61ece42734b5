"""Graded answers as rows of a file, where they were made, their reuse and export for replay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pasta_lab.evaluate.structure import Structure
from pasta_lab.tasks.registry import make
from pasta_lab.tasks.task import Task
from pasta_lm.errors import InputError, cause
from pasta_lm.journal import read_objects
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.strategies import APAR, PASTA

PERFECT = "perfect forks"
"""Reference answers that are replayed with their true forks: a speed without a quality."""
UNMASKED = {name: f"{name}, mask off" for name in (PASTA, APAR)}
"""The names under which records keep what a strategy decodes with every tag allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedAnswer(AnswerRecord):
    """One answer of one strategy with its grade."""

    task_id: str
    """Which prompt; of a task: family, split and seed."""
    family: str
    """The group of prompts that is reported together."""
    strategy: str
    """Which strategy or system answered."""
    grade: float
    """From 0 to 1."""
    structure: Structure = Structure()
    """Forks and syncs by unit of the task; empty if the prompt has no units."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> GradedAnswer:
        """Read a row of a record file.

        Raises:
            InputError: a key is missing or has a wrong value.
        """
        try:
            parts = row["structure"]
            forked, syncs = frozenset(parts["forked"]), frozenset(parts["syncs"])
            structure = Structure(forked, parts["num_stray"], syncs)
            # Slots make a new class, which the short form of super() does not know.
            answer = super(GradedAnswer, cls).from_row({**row, "structure": structure})
        except (KeyError, TypeError) as exc:
            raise InputError(f"no graded answer: {exc}") from exc
        assert isinstance(answer, GradedAnswer)
        return answer

    def to_row(self) -> dict[str, Any]:
        """Return the row of a record file."""
        parts = {
            "forked": sorted(self.structure.forked),
            "num_stray": self.structure.num_stray,
            "syncs": sorted(self.structure.syncs),
        }
        return asdict(self) | {"structure": parts}


def write_answers(path: Path, answers: Iterable[GradedAnswer]) -> None:
    """Write a record file, one JSON object a line.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(a.to_row(), ensure_ascii=False) + "\n" for a in answers)
    except OSError as exc:
        raise InputError(f"{path} cannot be written: {cause(exc)}") from exc


def read_answers(path: Path) -> list[GradedAnswer]:
    """Read a record file.

    Raises:
        InputError: the file cannot be read, or a line is no graded answer.
    """
    answers = []
    for number, row in read_objects(path):
        try:
            answers.append(GradedAnswer.from_row(row))
        except InputError as exc:
            raise InputError(f"{path}:{number}: no graded answer: {exc}") from exc
    return answers


def task_of(task_id: str, family: str, wordings: str | None) -> Task:
    """Return the task of a record; its id names the split and the seed."""
    split, seed = task_id.removeprefix(f"{family}-").rsplit("-", 1)
    return make(family, split, int(seed), wordings=wordings)
