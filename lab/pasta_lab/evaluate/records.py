"""Graded answers as rows of a file, where they were made, their reuse and export for replay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasta_lab.evaluate.structure import Structure
from pasta_lab.tasks.registry import make, training_families
from pasta_lab.tasks.task import Task
from pasta_lm.engines.record import AnswerRecord
from pasta_lm.errors import InputError, cause
from pasta_lm.journal import Row, write_rows
from pasta_lm.language.document import parse_program
from pasta_lm.measure.answering import Answerer, AnswerStore, Decoded, Prompt, System
from pasta_lm.strategies import apar, pasta, sequential

if TYPE_CHECKING:
    pass


PERFECT, ALWAYS, RANDOM = "perfect forks", "always fork", "random fork"
"""Reference answers that are replayed: with their true forks, with every unit a block, and with
as many blocks as the model makes, chosen by chance."""
BOUNDS = (PERFECT, ALWAYS, RANDOM)
UNMASKED = {name: f"{name}, mask off" for name in (pasta.NAME, apar.NAME)}
"""The names under which records keep what a strategy decodes with every tag allowed."""
NUM_CHECKED = 25
"""Prompts whose reused answers are decoded again, because records do not name their model."""
MAX_DIFFERENT = 1
"""Of those, the answers that rounding may change between two machines."""


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
            found = super(GradedAnswer, cls).from_row({**row, "structure": structure})
        except (KeyError, TypeError) as exc:
            raise InputError(f"no graded answer: {exc}") from exc
        assert isinstance(found, GradedAnswer)
        return found

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
            file.writelines(json.dumps(one.to_row(), ensure_ascii=False) + "\n" for one in answers)
    except OSError as exc:
        raise InputError(f"{path} cannot be written: {cause(exc)}") from exc


def read_answers(path: Path) -> list[GradedAnswer]:
    """Read a record file.

    Raises:
        InputError: the file cannot be read, or a line is no graded answer.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise InputError(f"{path} cannot be read: {cause(exc)}") from exc
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise InputError("no JSON object")
            found.append(GradedAnswer.from_row(row))
        except (ValueError, InputError) as exc:
            raise InputError(f"{path}:{number}: no graded answer: {exc}") from exc
    return found


def reused(
    path: Path, prompts: Sequence[Prompt], system: System, answerer: Answerer
) -> list[tuple[System, Prompt, Decoded]]:
    """Return the baseline's answers from a record file, so that many models can share them.

    Clocks are never reused: timed answers are decoded beside the other strategies.

    Args:
        path: What ``pasta-lab evaluate tasks --records`` wrote.
        prompts: The prompts; some of the first are decoded again and compared.
        system: The sequential baseline.
        answerer: Its model.

    Raises:
        InputError: the file cannot be read, lacks a prompt, or has answers of another model.
    """
    rows = [one for one in read_answers(path) if one.strategy == sequential.NAME]
    stored = {one.task_id: one for one in rows if one.wall_s is None}
    lacking = [prompt.id for prompt in prompts if prompt.id not in stored]
    if lacking:
        raise InputError(
            f"{path} has no sequential answer to {len(lacking)} of {len(prompts)} prompts, "
            f"{lacking[0]} first",
            hint="write it with the same --split, --seed and --num-prompts, or more of them",
        )
    first, again = prompts[:NUM_CHECKED], AnswerStore()
    answerer.answer_together(first, [system], again)
    differ = sum(again.answer(system.name, one).text != stored[one.id].text for one in first)
    if differ > MAX_DIFFERENT:
        raise InputError(
            f"{path}: {differ} of {len(first)} answers are not the baseline's",
            hint="write it with the same --baseline, --max-tokens, --wordings and --dtype",
        )
    return [(system, one, Decoded(_plain(stored[one.id]), "", "")) for one in prompts]


def _plain(answer: GradedAnswer) -> AnswerRecord:
    """Return an answer without its grade, so that it is graded again."""
    names = (field.name for field in fields(AnswerRecord))
    return AnswerRecord(**{name: getattr(answer, name) for name in names})


def task_of(task_id: str, family: str, wordings: str | None) -> Task:
    """Return the task of a record; its id names the split and the seed."""
    split, seed = task_id.removeprefix(f"{family}-").rsplit("-", 1)
    return make(family, split, int(seed), wordings=wordings)


def export_answers(records: Path, strategy: str, out: Path) -> int:
    """Write the timed answers of one strategy as annotated data; return how many there are.

    Only answers with text, in the families that training sees.

    Args:
        records: What ``pasta-lab evaluate tasks --records`` wrote.
        strategy: Whose answers.
        out: The file; it is written as a whole or not at all.

    Raises:
        InputError: the records cannot be read, or have no timed answer by this strategy.
    """
    trained = set(training_families())
    timed = [
        one
        for one in read_answers(records)
        if one.strategy == strategy and one.wall_s is not None and one.family in trained
    ]
    if not timed:
        raise InputError(
            f"{records} has no timed answer by {strategy}",
            hint="write it with `pasta-lab evaluate tasks --num-timed`",
        )
    rows = [_row(one) for one in timed if one.text.strip()]
    write_rows(out, rows)
    return len(rows)


def _row(one: GradedAnswer) -> Row:
    has_lengths = all(block.units is not None for block in parse_program(one.program).blocks)
    prompt = task_of(one.task_id, one.family, None).prompt
    return {
        "id": one.task_id,
        "messages": [{"role": "user", "content": prompt}],
        "response" if has_lengths else "annotated": one.program,
        "source": one.strategy,
    }
