"""Documents with known fields, and the comparison of two ways of decoding them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pasta_lab.fields.documents import Document, document, names
from pasta_lab.fields.measure import decode, figures
from pasta_lm.errors import UsageError
from pasta_lm.journal import Journal
from pasta_lm.parts.fields import fields_of


def true_object(doc: Document) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for path, value in doc.values.items():
        place = data
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
    return data


def test_the_true_values_are_right_stand_in_the_text_and_are_the_fields_of_the_schema() -> None:
    for doc in map(document, names(60)):
        assert doc.num_right(true_object(doc)) == len(doc.values)
        assert doc.num_right(None) == 0
        assert [field.path for field in fields_of(doc.schema)] == [*doc.values]
        told = (v for v in doc.values.values() if isinstance(v, str) and v[:3] != "202")
        assert all(value in doc.prompt for value in told)
        assert document(doc.name) == doc


def test_records_of_one_model_are_not_continued_with_another(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "records.jsonl")
    journal.append([{"id": "a/own", "model": "a/model"}])
    with pytest.raises(UsageError, match="has records of a/model, not of other/model"):
        decode(Mock(), "other/model", [], journal, at_once=1, end_s=0)


def test_methods_are_compared_over_the_documents_that_both_decoded() -> None:
    doc, other = map(document, names(2))
    row = {"steps": 10, "tokens": 40, "cut": False, "data": true_object(doc)}
    slow = {**row, "steps": 40, "data": json.loads("{}")}
    rows = [{"id": f"{doc.name}/own", **row}, {"id": f"{doc.name}/sequential", **slow}]
    found = figures([*rows, {"id": f"{other.name}/own", **row}])
    assert (found["num_documents"], found["num_fields"]) == (1, len(doc.values))
    assert found["difference"]["mean"] == 1
    assert found["times_fewer_steps"]["mean"] == pytest.approx(4)
    assert found["times_faster"] is None
