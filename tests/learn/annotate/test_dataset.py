"""The files that are made of a journal: Parquet and the card say what the records say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.language import check
from pasta_lm.learn.annotate import dataset
from pasta_lm.learn.annotate.dataset import PARQUET, RECORDS
from pasta_lm.learn.annotate.recipe import SourceConfig
from tests.learn.annotate.runs import by_rule

LISTED = "Three:\n\n" + f"- one two three four five{' six' * 9}\n" * 3 + "\nThat is all of it."
PLAIN = "caf\u00e9 \u2028 \U0001f35d \0 \r\n " + "long " * 3000


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


def test_parquet_has_every_record_and_nulls_for_missing_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(dataset, "ROWS_AT_ONCE", 2)
    folder = annotated(tmp_path, LISTED, "a short one", PLAIN, LISTED, "another", PLAIN[:12])
    rows = parquet.read_table(folder / PARQUET).to_pylist()
    columns = ("id", "messages", "response", "annotated", "source")
    expected = records_of(folder)
    assert {"response" in row for row in expected} == {True, False}
    assert rows == [{key: row.get(key) for key in columns} for row in expected]
    assert parquet.ParquetFile(folder / PARQUET).num_row_groups == 3


def test_parquet_is_never_older_than_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    folder = annotated(tmp_path, LISTED, "short")
    assert (folder / PARQUET).exists()
    monkeypatch.setattr(dataset, "find_spec", lambda name: None)
    annotated(tmp_path, LISTED, "short")
    assert sorted(one.name for one in folder.iterdir()) == [
        "README.md", "annotated.jsonl", "failed.jsonl", "journal.jsonl", "lock", "settings.json",
    ]  # fmt: skip


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
