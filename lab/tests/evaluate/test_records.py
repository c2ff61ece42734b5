"""Graded answers and their record files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.tests.evaluate.records import graded_answer
from lab.tests.evaluate.rows import answered, marks
from pasta_lab.evaluate.records import GradedAnswer, write_answers
from pasta_lab.evaluate.structure import true_structure
from pasta_lab.tasks import FAMILIES, make
from pasta_lab.tasks.gold import gold
from pasta_lab.tasks.referee import referee_grade
from pasta_lm.engines.request import Answer
from pasta_lm.errors import InputError
from pasta_lm.interpreter.trace import Kind, Role, TokenRecord, Trace
from pasta_lm.language.document import Document

ROLES = (Role.CONTENT, Role.TAG, Role.TOPIC, Role.CONTENT, Role.TAG, Role.CONTENT)


def answer(document: Document, finish_reason: str = "stop", num_illegal: int = 0) -> Answer:
    tokens = [TokenRecord(0, None, "", role, step, 0.0) for step, role in enumerate(ROLES)]
    trace = Trace(kind=Kind.GENERATED, finish_reason=finish_reason, num_illegal=num_illegal)
    trace.tokens, trace.critical_path, trace.wall_s = tokens, 2, 0.5
    return Answer(document, trace)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_has_grade_1_and_the_true_structure(family: str) -> None:
    task = make(family, "test", 3)
    document = gold(task).with_lengths(len)
    row = graded_answer(task, answer(document), "pasta")
    assert (row.task_id, row.family, row.strategy) == (task.id, family, "pasta")
    assert (row.grade, row.structure) == (1.0, true_structure(task))
    assert (row.text, row.program) == (task.text, document.written())
    assert row.is_well_formed


def test_a_cut_answer_has_the_grade_of_its_text() -> None:
    task = make("takings", "test", 1)
    cut = Document(gold(task).with_lengths(len).items[:2])
    row = graded_answer(task, answer(cut, "length"), "pasta")
    assert row.grade == referee_grade(task, cut.plain_text)
    assert 0 < row.grade < 1
    assert not row.is_well_formed


def test_a_record_has_all_fields_of_an_answer(tmp_path: Path) -> None:
    rows = [
        answered(0.5, structure=marks([2, 0], [1], 3), text="\u00e9\n\u2028x", wall_s=0.25),
        answered(1.0),
    ]
    path = tmp_path / "records.jsonl"
    write_answers(path, iter(rows))
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    found = [json.loads(line) for line in lines]
    assert found == [row.to_row() for row in rows]
    assert found[0]["structure"] == {"forked": [0, 2], "num_stray": 3, "syncs": [1]}
    for row, told in zip(rows, found, strict=True):
        assert GradedAnswer(**{**told, "structure": row.structure}) == row


def test_an_unwritable_record_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_answers(tmp_path / "absent" / "records.jsonl", [answered()])
