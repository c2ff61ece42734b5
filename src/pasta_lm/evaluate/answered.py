"""One graded answer, and the file that keeps them: every figure can be computed again from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pasta_lm.engines.request import Answer
from pasta_lm.errors import InputError
from pasta_lm.evaluate.structure import Structure, structure
from pasta_lm.strategies import apar
from pasta_lm.tasks.referee import referee_grade
from pasta_lm.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer to one task.

    Attributes:
        task_id: Which task.
        family: Its family.
        strategy: What answered.
        text: What a reader gets.
        program: The written form; the annotator form where blocks have no lengths.
        grade: The referee's, from 0 to 1.
        structure: Its forks and syncs.
        finish_reason: ``stop``, or the limit that cut it.
        num_illegal: Tags where the grammar has none.
        num_content_tokens: Tokens of all threads, tags and topics excluded.
        critical_path: Tokens decoded one after another.
        wall_s: Seconds, where it was decoded alone; None: among others.
        kind: How it came about, see ``Kind``; None: an older version did not say.
        trace: What happened when, where it was decoded alone; ``Trace.from_packed`` reads it.
    """

    task_id: str
    family: str
    strategy: str
    text: str
    program: str
    grade: float
    structure: Structure
    finish_reason: str
    num_illegal: int
    num_content_tokens: int
    critical_path: int
    wall_s: float | None = None
    kind: str | None = None
    trace: str | None = None

    @property
    def is_well_formed(self) -> bool:
        """Tell whether it ended by itself and every tag stood where the grammar has one."""
        return self.finish_reason == "stop" and not self.num_illegal

    @property
    def parallelism(self) -> float:
        """Return content tokens / critical path (PASTA, section 5.1)."""
        return self.num_content_tokens / max(self.critical_path, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the row of a record file."""
        parts = {
            "forked": sorted(self.structure.forked),
            "num_stray": self.structure.num_stray,
            "syncs": sorted(self.structure.syncs),
        }
        return asdict(self) | {"structure": parts}


def graded(task: Task, answer: Answer, strategy: str, *, is_timed: bool = False) -> Answered:
    """Return an answer with its grade; a cut answer gets the grade of its text.

    Args:
        task: What was asked.
        answer: What an engine gave.
        strategy: The name under which it is counted.
        is_timed: Whether it was decoded alone, so that its clock means something.
    """
    trace = answer.trace
    return Answered(
        task_id=task.id,
        family=task.family,
        strategy=strategy,
        text=answer.text,
        program=answer.program,
        grade=referee_grade(task, answer.text),
        structure=structure(task, answer.document, by_details=strategy == apar.NAME),
        finish_reason=answer.finish_reason,
        num_illegal=trace.num_illegal,
        num_content_tokens=trace.num_content_tokens,
        critical_path=trace.critical_path,
        wall_s=trace.wall_s if is_timed else None,
        kind=trace.kind.value,
        trace=trace.packed() if is_timed else None,
    )


def write_answers(path: Path, answers: Iterable[Answered]) -> None:
    """Write a record file, a line each.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            for answer in answers:
                file.write(json.dumps(answer.to_dict(), ensure_ascii=False) + "\n")
    except OSError as exc:
        raise InputError(f"{path} cannot be written: {exc}") from exc


def read_answers(path: Path) -> list[Answered]:
    """Read a record file.

    Raises:
        InputError: it cannot be read, or a line is no graded answer: the first is named.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise InputError(f"{path} cannot be read: {exc}") from exc
    return [_answered(path, number, line) for number, line in enumerate(lines, start=1)]


def _answered(path: Path, number: int, line: bytes) -> Answered:
    try:
        row = json.loads(line)
        parts = row.pop("structure")
        forked, syncs = frozenset(parts["forked"]), frozenset(parts["syncs"])
        return Answered(**row, structure=Structure(forked, parts["num_stray"], syncs))
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise InputError(f"{path}:{number}: no graded answer: {exc}") from exc
