"""The files that are made of a journal: the records and the card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.language import check
from pasta_lm.learn.annotate.dataset import RECORDS
from pasta_lm.learn.annotate.recipe import SourceConfig
from tests.learn.annotate.runs import by_rule


def annotated(folder: Path, *answers: str, source: SourceConfig | None = None) -> Path:
    """Annotate answers by rule, and return the folder of the set."""
    rows = [{"id": n, "prompt": f"p{n}", "answer": answer} for n, answer in enumerate(answers)]
    by_rule(folder, map(json.dumps, rows), source)
    return folder / "out"


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RECORDS).read_bytes().split(b"\n") if line]


def test_spaces_before_a_part_are_written_into_its_block(tmp_path: Path) -> None:
    listed = "Three:\n" + f"  - one two three four five{' six' * 9}\n" * 3
    (record,) = records_of(annotated(tmp_path, listed))
    assert record["annotated"].count("> one two") == 3
    assert check(record["annotated"], "annotator") == []


def test_the_card_names_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"id": 0, "prompt": "p", "answer": "a"}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **keys: rows)
    for revision, told in ((None, "its newest revision then"), ("1a2b", "revision `1a2b`")):
        place = tmp_path / str(revision)
        place.mkdir()
        source = SourceConfig(hub="some/set", revision=revision)
        card = (annotated(place, source=source) / "README.md").read_text("utf-8")
        assert f"Source: `some/set` of Hugging Face, split `train`, {told}." in card
    assert "Source: the file `rows.jsonl`." in (annotated(tmp_path, "a") / "README.md").read_text()
