"""Sources that libraries read: Parquet group by group, data sets of Hugging Face as streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import InputError, RemoteError, UsageError
from pasta_lm.learn.annotate.recipe import ROWS_AT_ONCE, SourceConfig, SourceRow, read_source

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets")

UNICODE = "caf\u00e9 \u2028 \x85 \x1c \r\n \U0001f35d e\u0301 \u05e9\u05dc\u05d5\u05dd \0 end"
PAIRS = [
    {"id": 3, "prompt": "A?", "answer": "B"},
    {"id": -1, "prompt": UNICODE, "answer": UNICODE},
    {"id": 4, "prompt": None, "answer": "B"},
    {"id": 5, "prompt": " ", "answer": "B"},
    {"id": 6, "prompt": "A?", "answer": ""},
]


def read(path: Path) -> list[SourceRow]:
    return list(read_source(SourceConfig(file=str(path))))


@pytest.mark.parametrize(
    "text", [pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())], ids=str
)
def test_parquet_gives_the_same_rows_as_json(text: Any, tmp_path: Path) -> None:
    schema = pyarrow.schema([("id", pyarrow.int64()), ("prompt", text), ("answer", text)])
    parquet.write_table(pyarrow.Table.from_pylist(PAIRS, schema), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    rows = read(tmp_path / "rows.parquet")
    assert rows == read(tmp_path / "rows.jsonl")
    reasons = [None, None, "no_columns", "no_prompt", "no_answer"]
    assert [row.skipped for row in rows] == reasons


def test_parquet_is_read_group_by_group(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [{"prompt": f"p{n}", "answer": f"answer {n}"} for n in range(3 * ROWS_AT_ONCE)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=ROWS_AT_ONCE)
    column = parquet.ParquetFile(path).metadata.row_group(2).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * column.total_compressed_size)
    source = read_source(SourceConfig(file=str(path)))
    for row in rows[: 2 * ROWS_AT_ONCE]:
        assert next(source).answer == row["answer"]
    with pytest.raises(InputError, match=r"rows\.parquet cannot be read as Parquet"):
        next(source)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: None, "no such file"),
        (Path.touch, "cannot be read as Parquet"),
        (lambda path: path.write_text('{"prompt": "a"}\n'), "cannot be read as Parquet"),
    ],
    ids=["absent", "empty", "json"],
)
def test_an_invalid_parquet_file_is_an_error(
    spoil: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    spoil(path)
    with pytest.raises(InputError, match=message) as caught:
        read(path)
    assert str(path) in caught.value.message


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request out, and no file into the home of whoever runs this."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", tmp_path / "modules")


@pytest.mark.usefixtures("offline")
def test_a_data_set_is_read_by_the_library_and_a_wrong_split_is_named(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "A?"}, {"from": "gpt", "value": "B"}]
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps({"id": "x", "conversations": turns}) + "\n")
    (row,) = read_source(SourceConfig(hub=str(folder)))
    assert (row.id, row.prompt, row.answer) == ("x", "A?", "B")
    with pytest.raises(UsageError, match=r"split validation, revision newest\) cannot be read"):
        list(read_source(SourceConfig(hub=str(folder), split="validation")))


def test_the_hub_is_read_as_a_stream_at_the_given_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def load_dataset(*args: str, **keys: Any) -> Iterator[dict[str, str]]:
        calls.append((args, keys))
        yield {"prompt": "p", "answer": "a"}
        raise RuntimeError("connection reset\nby peer")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = read_source(SourceConfig(hub="some/set", split="test", revision="1a2b3c"))
    assert next(rows).answer == "a"
    with pytest.raises(RemoteError, match="connection reset") as caught:
        next(rows)
    assert "by peer" not in caught.value.message
    keys = {"split": "test", "revision": "1a2b3c", "streaming": True}
    assert calls == [(("some/set",), keys)]
    with pytest.raises(UsageError, match=r"source\.revision would be ignored"):
        SourceConfig(file="x.jsonl", revision="1a2b3c")
