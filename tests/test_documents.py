"""Documents are read one by one, faults and all; rows of a job are whole, in order, and its own."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.documents import JobFile, read_documents
from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.journal import Row

HALF = rb'{"id": "h", "text": "\ud83d"}'
CHAT = [{"role": "user", "content": "Hi."}]
LINES: Mapping[bytes, tuple[str | int, Any, str | None]] = {
    b'\xef\xbb\xbf{"id": "a", "text": "A."}': ("a", "A.", None),
    b'{"id": 7, "messages": [{"role": "user", "content": "Hi."}]}': (7, CHAT, None),
    b'{"text": "no id"}': ("line 3", "no id", None),
    b'{"id": "a", "text": "again"}': ("a", "again", "the id 'a' occurs twice"),
    b'{"id": "7", "text": "again"}': ("7", "again", "the id '7' occurs twice"),
    b"[1]": ("line 6", "", "line 6: not a JSON object"),
    b"{": ("line 7", "", "line 7: not JSON"),
    b'{"id": "caf\xe9", "text": "x"}': ("line 8", "", "line 8: it is not UTF-8"),
    HALF: ("line 9", "", "line 9: a text holds half a surrogate pair"),
    b'{"id": "n"}': ("n", "", "it has no text"),
    b'{"id": "e", "text": " "}': ("e", " ", "its text is empty"),
    b'{"id": "5", "text": 5}': ("5", "", "its text is 5"),
    b'{"id": [], "text": "x"}': ("line 13", "", "its id is []"),
    b'{"id": "b", "text": "x", "messages": []}': ("b", "", "give it a text, or a list of messages"),
}


def check(documents: Sequence[Any], expected: Sequence[tuple[Any, Any, str | None]]) -> None:
    assert [(one.id, one.prompt) for one in documents] == [each[:2] for each in expected]
    for document, (_, _, error) in zip(documents, expected, strict=True):
        assert (document.error is None) is (error is None)
        assert (document.error or "").startswith(error or "")


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.jsonl.gz"])
def test_a_line_that_is_no_document_has_an_error_and_all_others_are_read(
    tmp_path: Path, name: str
) -> None:
    file, data = tmp_path / name, b"\n".join([*LINES, b"", b""])
    file.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    check([*read_documents([file])], [*LINES.values()])


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_table_has_a_column_of_texts_whatever_separates_it(tmp_path: Path, mark: str) -> None:
    file = tmp_path / "docs.csv"
    lines = ["\ufeffid,text,year", 'a,"One,\n""two"".",1', ",Three.,2", "c,,3", "d", "e,x,1,2", ""]
    file.write_bytes("\r\n".join(lines).replace(",", mark).encode())
    rows = [("a", f'One{mark}\n"two".', None), ("row 3", "Three.", None)]
    rows += [("c", "", "its text is empty"), ("d", "", "it has no text"), ("e", "", "row 6 has 4")]  # type: ignore[list-item]
    check([*read_documents([file])], rows)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"id,body\na,b\n", "has no column 'text'; its first line is 'id,body'"),
        (b"", "has no column 'text'"),
        (b'id,text\na,"b\n', "cannot be read as CSV: unexpected end of data"),
        (b"id,text\na,caf\xe9\n", "cannot be read as CSV: it is not UTF-8"),
    ],
)
def test_a_file_that_is_no_table_of_documents_is_refused(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    file = tmp_path / "docs.csv"
    file.write_bytes(data)
    with pytest.raises(InputError, match=reason):
        [*read_documents([file])]


def test_text_files_are_documents_named_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    files = [tmp_path / name for name in ("a.txt", "latin.txt", "gone.txt")]
    files[0].write_text("\ufeffAda.", "utf-8")
    files[1].write_bytes(b"caf\xe9")
    expected = [("a.txt", "Ada.", None), ("latin.txt", "", "it is not UTF-8: byte 4")]
    expected += [("gone.txt", "", "it cannot be read: No such file")]
    check([*read_documents(files)], expected)
    (tmp_path / "b" / "a.txt").write_text("Bob.", "utf-8")
    twins = [files[0], tmp_path / "b" / "a.txt"]
    check([*read_documents(twins)], [(str(twins[0]), "Ada.", None), (str(twins[1]), "Bob.", None)])


COLUMNS = {"id": ("id",), "guest.name": ("guest", "name"), "beds": ("beds",)}
ROWS: list[Row] = [
    {"id": "a", "data": {"id": 'say "hi",\r\nthen\rgo\n', "guest": {"name": "\u00e9"}, "beds": [1]},
     "confidence": {"id": 0.5, "guest.name": 0.9, "beds": 1.0}, "unfinished": []},
    {"id": 2, "error": "it has no text"},
    {"id": "c", "data": {"id": True, "guest": {}}, "unfinished": ["guest.name", "beds"]},
]  # fmt: skip


def written(out: JobFile, rows: Sequence[Row], **settings: object) -> bytes:
    with out.opened(settings):
        num_stored = sum(1 for _ in out.rows())
        out.append(rows[num_stored:])
    return out.path.read_bytes()


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_cut_at_every_byte_a_job_goes_on_to_the_same_file(tmp_path: Path, name: str) -> None:
    out = JobFile(tmp_path / name, COLUMNS, has_confidence=True)
    whole = written(out, ROWS)
    for size in range(len(whole)):
        out.path.write_bytes(whole[:size])
        assert written(out, ROWS) == whole
    if name.endswith("jsonl"):
        assert [*out.rows()] == ROWS
        return
    head, *cells = csv.reader(StringIO(whole.decode(), newline=""))
    assert head == ["id", "data.id", "guest.name", "beds", "confidence.id",
                    "confidence.guest.name", "confidence.beds", "unfinished", "error"]  # fmt: skip
    assert cells[0] == [
        "a",
        'say "hi",\r\nthen\rgo\n',
        "\u00e9",
        "[1]",
        "0.5",
        "0.9",
        "1.0",
        "",
        "",
    ]
    assert cells[1] == ["2", *[""] * 7, "it has no text"]
    assert cells[2] == ["c", "true", "", "", "", "", "", "guest.name, beds", ""]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_rows_with_a_field_of_less_confidence_or_a_cut_one_are_to_be_reviewed(
    tmp_path: Path, name: str
) -> None:
    out, review = JobFile(tmp_path / name, COLUMNS, has_confidence=True), tmp_path / "r.jsonl"
    written(out, ROWS)
    assert out.write_review(0.95, review) == 2
    low, cut = map(json.loads, review.read_text("utf-8").splitlines())
    assert (low["id"], low["below"]) == ("a", {"id": 0.5, "guest.name": 0.9})
    assert low["data"]["id"] == ROWS[0]["data"]["id"]
    assert (cut["id"], cut["below"], bool(cut["unfinished"])) == ("c", {}, True)


def test_rows_of_another_job_or_of_none_are_refused_by_name_and_kept(tmp_path: Path) -> None:
    out = JobFile(tmp_path / "rows.jsonl", COLUMNS)
    whole = written(out, ROWS, model="a", schema={"x": 1}, seed=0)
    with pytest.raises(UsageError, match=r"rows\.jsonl was begun .*: model \(a\), schema, seed"):
        written(out, ROWS, model="b", schema={})
    other = JobFile(tmp_path / "other.jsonl", COLUMNS)
    other.path.write_text("mine\n", "utf-8")
    with pytest.raises(UsageError, match=r"other\.jsonl is there and was not begun"):
        written(other, ROWS)
    assert (out.path.read_bytes(), other.path.read_text("utf-8")) == (whole, "mine\n")
    with pytest.raises(UsageError, match=r"no folder .*no for the rows"):
        written(JobFile(tmp_path / "no" / "rows.jsonl", COLUMNS), ROWS)


def test_a_second_process_is_refused_and_a_full_disk_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = JobFile(tmp_path / "rows.jsonl", COLUMNS)
    with out.opened({}):
        out.append(ROWS[:1])
        with pytest.raises(UsageError, match=r"another process is writing .*rows\.jsonl"):
            written(out, ROWS)
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space")))
            with pytest.raises(PastaError, match=r"rows\.jsonl cannot be written: No space"):
                out.append(ROWS[1:])
        with out.path.open("rb+") as file:  # what the disk had no room for
            file.truncate(len(out.path.read_bytes()) - 7)
    written(out, ROWS)
    assert [*out.rows()] == ROWS
