"""Sources in Parquet: every type that text and turns come in, read group by group."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import InputError
from pasta_lm.learn.annotate.sources import ROWS_AT_ONCE, SourceConfig, SourceRow, read_source

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

LONG = "one two three " * 100_000
UNICODE = "caf\u00e9 \u2028 \x85 \x1c \r\n \U0001f35d e\u0301 \u05e9\u05dc\u05d5\u05dd \0 end"
TURN = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.large_string())])


def read(path: Path, columns: str | None = None) -> list[SourceRow]:
    return list(read_source(SourceConfig(file=str(path), columns=columns)))


def turns(*texts: str | None) -> list[dict[str, str | None]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


PAIRS = [
    {"id": 3, "prompt": "A?", "answer": "B"},
    {"id": -1, "prompt": UNICODE, "answer": UNICODE},
    {"id": None, "prompt": "long?", "answer": LONG},
    {"id": 4, "prompt": None, "answer": "B"},
    {"id": 5, "prompt": " ", "answer": "B"},
    {"id": 6, "prompt": "A?", "answer": ""},
]


@pytest.mark.parametrize(
    "text",
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.string_view(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    ],
    ids=str,
)
def test_parquet_gives_the_same_rows_as_json(text: Any, tmp_path: Path) -> None:
    schema = pyarrow.schema([("id", pyarrow.int64()), ("prompt", text), ("answer", text)])
    table = pyarrow.Table.from_pylist(PAIRS, schema)
    parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, PAIRS)))
    found = read(tmp_path / "rows.parquet")
    assert found == read(tmp_path / "rows.jsonl")
    assert [row.skipped for row in found] == [
        None, None, None, "no_columns", "no_prompt", "no_answer",
    ]  # fmt: skip
    assert (found[0].id, found[1].answer, found[2].answer) == ("3", UNICODE, LONG)


def test_a_column_of_records_is_a_conversation_and_nulls_are_reported(tmp_path: Path) -> None:
    rows = [turns("A?", "B", "C?", "D"), turns("A?"), None, [None], turns("A?", None), []]
    schema = pyarrow.schema([("messages", pyarrow.list_(TURN)), ("n", pyarrow.float64())])
    table = pyarrow.Table.from_pylist([{"messages": row} for row in rows], schema)
    parquet.write_table(table, tmp_path / "rows.parquet")
    found = read(tmp_path / "rows.parquet")
    assert (found[0].prompt, found[0].answer) == ("A?", "B")
    assert [row.skipped for row in found] == [
        None, "no_answer", "no_columns", "no_columns", "no_columns", "no_prompt",
    ]  # fmt: skip


def test_a_file_without_the_columns_gives_skipped_rows(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["a", "b"]}), tmp_path / "rows.parquet")
    assert [row.skipped for row in read(tmp_path / "rows.parquet")] == ["no_columns"] * 2


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


def cut(path: Path) -> None:
    parquet.write_table(pyarrow.table({"prompt": ["a"], "answer": ["b"]}), path)
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: None, "no such file"),
        (Path.mkdir, "cannot be read as Parquet"),
        (Path.touch, "cannot be read as Parquet"),
        (lambda path: path.write_text('{"prompt": "a"}\n'), "cannot be read as Parquet"),
        (cut, "cannot be read as Parquet"),
    ],
    ids=["absent", "folder", "empty", "json", "cut"],
)
def test_an_invalid_parquet_file_is_an_error(
    spoil: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    spoil(path)
    with pytest.raises(InputError, match=message) as caught:
        read(path)
    assert str(path) in caught.value.message
    assert caught.value.exit_code == 3
