"""Annotated data survives the disk, and a line that is no record is named by file and number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pasta_lm.data.records import Record, read_records, write_records
from pasta_lm.errors import InputError
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text
from tests.data.examples import documents

WITH_LENGTHS = 'Two.<promise topic="a" tokens="1"/><async>one</async><sync/>End.'
WITHOUT = 'Two.<async topic="a">one</async><sync/>End.'
RECORDS = [
    Record("plain", "Say hello.", parse("Hello.")),
    Record("written", "Q?", parse(WITH_LENGTHS), "made"),
    Record("annotated", "Q?", parse(WITHOUT, "annotator"), "teacher"),
    Record("odd", "Is <sync/> a tag?\n\u2028\u00e9 \x85", Document((Text("<sync/>\r\n is text"),))),
    Record("mixed", "", Document((Block("a", 2), Block("b", None, (Text("x"),)), Sync()))),
]


def without_lengths(record: Record) -> list[object]:
    """Return what the annotator form keeps of a record."""
    document = record.document
    blocks = [(block.topic, block.items) for block in document.blocks]
    return [record.id, record.prompt, document.plain_text, blocks, document.num_syncs]


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    assert write_records(path, iter(RECORDS)) == len(RECORDS)
    found = read_records(path)
    assert found[:4] == RECORDS[:4]
    # One length that nobody knows: the annotator form has none.
    assert [block.units for block in found[4].document.blocks] == [None, None]
    assert without_lengths(found[4]) == without_lengths(RECORDS[4])


@pytest.mark.parametrize(
    ("record", "key", "text"),
    [
        (RECORDS[0], "response", "Hello."),
        (RECORDS[1], "response", WITH_LENGTHS),
        (RECORDS[2], "annotated", WITHOUT),
    ],
)
def test_a_record_is_a_line_of_json(tmp_path: Path, record: Record, key: str, text: str) -> None:
    path = tmp_path / "data.jsonl"
    write_records(path, [record])
    (line,) = path.read_text(encoding="utf-8").splitlines()
    messages = [{"role": "user", "content": record.prompt}]
    rest = {"id": record.id, "messages": messages, "source": record.source}
    assert json.loads(line) == {**rest, key: text}


nonempty = documents.filter(lambda document: document.items != ())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.builds(Record, st.text("abc", min_size=1), st.text(), nonempty, st.text())))
def test_any_records_survive_the_disk(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "data.jsonl"
    assert write_records(path, records) == len(records)
    found = read_records(path)
    assert list(map(without_lengths, found)) == list(map(without_lengths, records))
    for one, other in zip(records, found, strict=True):
        knows_all = all(block.units is not None for block in one.document.blocks)
        assert one.source == other.source
        assert not knows_all or one.document == other.document


def row(**changes: Any) -> str:
    """Return a good line with some keys changed; None leaves a key out."""
    good = {"id": "a", "messages": [{"role": "user", "content": "Q?"}], "response": "A."}
    return json.dumps({key: value for key, value in (good | changes).items() if value is not None})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{broken", "no JSON"),
        ("[1, 2]", "not an object"),
        ("null", "not an object"),
        (row(id=None), "'id' must be a text"),
        (row(id=7), "'id' must be a text"),
        (row(id=""), "'id' must be a text"),
        (row(messages=None), "'messages' must hold one message of the user"),
        (row(messages="Q?"), "'messages' must hold one message of the user"),
        (row(messages=[]), "'messages' must hold one message of the user"),
        (row(messages=[{"role": "system", "content": "Q?"}]), "one message of the user"),
        (row(messages=[{"role": "user", "content": 1}]), "one message of the user"),
        (row(messages=[{"role": "user", "content": "Q?"}] * 2), "one message of the user"),
        (row(response=None), "'annotated' must be a text"),
        (row(response=["A."]), "'response' must be a text"),
        (row(response=""), "'response' must be a text"),
        (row(response="<async>nobody promised it</async>"), "response: "),
        (row(response=WITHOUT), "response: "),
        (row(response=None, annotated='<async topic="a">never closed'), "annotated: "),
    ],
)
def test_a_line_that_is_no_record_is_named_by_file_and_number(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f"{row()}\n\n{line}\n{row()}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_records(path)
    assert caught.value.message.startswith(f"{path}, line 3: ")
    assert reason in caught.value.message


def test_a_fault_in_an_answer_is_shown_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(row(response="<async>nobody promised it</async>"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_records(path)
    assert caught.value.hint


def test_blank_lines_and_the_keys_of_others_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    messages = [{"role": "user", "content": "Q?", "name": "me"}]
    path.write_text(f"\n{row(messages=messages, score=3)}\n  \n", encoding="utf-8")
    assert read_records(path) == [Record("a", "Q?", parse("A."))]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b"\xe9")
    for path in (tmp_path / "absent.jsonl", latin, tmp_path):
        with pytest.raises(InputError, match="cannot be read") as caught:
            read_records(path)
        assert str(path) in caught.value.message
