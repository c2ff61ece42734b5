"""A journal loses no row and repeats none, wherever its process was killed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from pasta_lm.errors import InputError
from pasta_lm.journal import Journal, Row, line_of, read_objects, read_rows, write_rows

ROWS: list[Row] = [
    {"id": "one", "text": "first\nline"},
    {"id": "two", "text": "caf\u00e9 \u2028 \x85 \x1c"},
    {"id": "three", "numbers": [1, 2.5, -3e-9]},
]


def written(path: Path, rows: list[Row]) -> bytes:
    Journal(path).append(rows)
    return path.read_bytes()


def test_what_was_appended_is_found_again_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "journal.jsonl"
    journal = Journal(path)
    journal.append(ROWS[:2])
    journal.append(ROWS[2:])
    assert list(journal.rows.values()) == ROWS
    assert list(Journal(path).rows.values()) == ROWS == read_rows(path)
    assert [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] == ROWS


def test_cut_at_every_byte_of_its_last_line_it_goes_on_to_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, ROWS)
    last = len(whole) - len(line_of(ROWS[2]))
    for size in range(last, len(whole) + 1):
        path.write_bytes(whole[:size])
        journal = Journal(path)
        num_rows = 3 if size == len(whole) else 2
        assert list(journal.rows.values()) == ROWS[:num_rows]
        assert path.read_bytes() == (whole if num_rows == 3 else whole[:last])
        journal.append([row for row in ROWS if row["id"] not in journal.rows])
        assert path.read_bytes() == whole


def test_a_line_of_zeros_is_torn_too(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, ROWS)
    path.write_bytes(whole + b"\0" * 4096)
    assert len(Journal(path).rows) == 3
    assert path.read_bytes() == whole


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"id": 3}', b"{}", b"\xff"])
def test_damage_before_the_last_line_is_named_and_nothing_is_cut(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "journal.jsonl"
    damaged = line_of(ROWS[0]) + line + b"\n" + line_of(ROWS[1])
    path.write_bytes(damaged)
    message = r"journal\.jsonl(:2: no JSON object with an id| cannot be read)"
    with pytest.raises(InputError, match=message):
        Journal(path)
    assert path.read_bytes() == damaged


def test_no_id_stands_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(ROWS[:1])
    with pytest.raises(ValueError, match="has a row one already"):
        journal.append(ROWS[:1])
    path.write_bytes(line_of(ROWS[0]) * 2)
    with pytest.raises(InputError, match=":2: one occurs twice"):
        read_rows(path)


def test_a_file_that_is_written_at_once_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, ROWS)
    write_rows(path, ROWS[:1])
    assert read_rows(path) == ROWS[:1]
    assert [one.name for one in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file: .*absent\.jsonl"):
        read_rows(tmp_path / "absent.jsonl")


HALF = {"id": "half", "text": "\ud83d"}
"""JSON can hold half a surrogate pair as an escape; UTF-8 cannot."""


def test_a_row_with_half_a_surrogate_pair_is_kept_and_so_are_the_others(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).append([ROWS[0], HALF, ROWS[1]])
    assert list(Journal(path).rows.values()) == [ROWS[0], HALF, ROWS[1]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (line_of(HALF), "rows.jsonl:2: a text holds half a surrogate pair: it is no Unicode"),
        (b"{\n", "rows.jsonl:2: not JSON: .* at column"),
        (b"[]\n", "rows.jsonl:2: not a JSON object"),
    ],
)
def test_the_line_of_a_users_file_that_is_no_object_is_named(
    tmp_path: Path, line: bytes, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(line_of(ROWS[0]) + line)
    objects = read_objects(path)
    assert next(objects) == (1, ROWS[0])
    with pytest.raises(InputError, match=message):
        next(objects)


@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_row(
    tmp_path: Path, packed: bool
) -> None:
    data = b"\xef\xbb\xbf" + b"".join(map(line_of, ROWS)).replace(b"}\n", b"}\r\n")
    path = tmp_path / ("rows.jsonl.gz" if packed else "rows.jsonl")
    path.write_bytes(gzip.compress(data) if packed else data)
    assert read_rows(path) == ROWS == [row for _, row in read_objects(path)]


@pytest.mark.parametrize("damage", [b"no gzip", gzip.compress(b"x" * 99, mtime=0)[:-9]])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(damage)
    for read in (read_rows, lambda path: list(read_objects(path))):
        with pytest.raises(InputError, match=r"rows\.jsonl\.gz cannot be read"):
            read(path)
