"""Annotated data survives the disk, and a line that is no record is named by file and number."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pasta_lm.errors import InputError
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.models.annotated import Record, read_annotated, read_records, write_records
from tests.learn.data.examples import documents

WITH_LENGTHS = 'Two.<promise topic="a" tokens="1"/><async>one</async><sync/>End.'
WITHOUT = 'Two.<async topic="a">one</async><sync/>End.'
RECORDS = [
    Record("plain", "Say hello.", parse("Hello.")),
    Record("written", "Q?", parse(WITH_LENGTHS), "made"),
    Record("annotated", "Q?", parse(WITHOUT, "annotator"), "teacher"),
    Record("odd", "Is <sync/> a tag?\n\u2028\u00e9 \x85", Document((Text("<sync/>\r\n is text"),))),
    Record("mixed", " ", Document((Block("a", 2), Block("b", None, (Text("x"),)), Sync()))),
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


def test_a_record_has_its_spaces_after_tags_wherever_they_stood(tmp_path: Path) -> None:
    lone, moved = 'Two: <async topic="a">one</async>', 'Two:<async topic="a"> one</async>'
    record = Record("a", "Q?", parse(lone, "annotator"))
    assert record.document.annotator_form() == moved
    row = {"messages": [{"role": "user", "content": "Q?"}], "annotated": lone}
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(row))
    (found,) = read_records(path)
    assert found.document == record.document
    write_records(path, [found])
    assert json.loads(path.read_text())["annotated"] == moved


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


nonempty = documents.filter(lambda document: document.plain_text != "")
names, prompts = st.text("abc", min_size=1), st.text(min_size=1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.builds(Record, names, prompts, nonempty, st.text())))
def test_any_records_can_be_written_and_read_again(tmp_path: Path, records: list[Record]) -> None:
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


QUESTION = [{"role": "user", "content": "Q?"}]


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        (row(), "Q?"),
        (row(messages=None, prompt="P?"), "P?"),
        (row(messages=None, instruction="I?"), "I?"),
        (row(messages=None, instruction="I?", prompt="P?"), "P?"),
        (row(prompt="not this"), "Q?"),
        (row(messages=[{"role": "system", "content": "Be brief."}, *QUESTION]), "Be brief.\n\nQ?"),
        (row(messages=[{"role": "user", "content": "Q?", "name": "me"}]), "Q?"),
        (row(messages=[{"content": "Q?"}]), "Q?"),
    ],
)
@pytest.mark.parametrize("is_zipped", [False, True])
def test_a_prompt_is_read_from_one_of_three_keys(
    tmp_path: Path, line: str, prompt: str, is_zipped: bool
) -> None:
    path = tmp_path / ("data.jsonl.gz" if is_zipped else "data.jsonl")
    path.write_bytes(gzip.compress(line.encode()) if is_zipped else line.encode())
    assert read_records(path) == [Record("a", prompt, parse("A."))]


@pytest.mark.parametrize(
    ("given_id", "expected"), [("x", "x"), (7, "7"), (0, "0"), (None, "2"), ("", "2")]
)
def test_a_record_without_an_id_gets_its_line_number(
    tmp_path: Path, given_id: object, expected: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f"\n{row(id=given_id)}\n", encoding="utf-8")
    assert [record.id for record in read_records(path)] == [expected]


@pytest.mark.parametrize(("source", "expected"), [("made", "made"), (None, ""), (3, "3")])
def test_a_source_is_kept(tmp_path: Path, source: object, expected: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(row(source=source), encoding="utf-8")
    assert [record.source for record in read_records(path)] == [expected]


def turn(role: Any, content: Any = "Q?") -> dict[str, Any]:
    return {"role": role, "content": content}


PROBLEMS = [
    ("{broken", "not JSON"),
    ("[1, 2]", "not a JSON object"),
    ("null", "not a JSON object"),
    (row(messages="Q?"), "'messages' must be a list of objects"),
    (row(messages=["Q?"]), "'messages' must be a list of objects"),
    (row(messages=[turn("user"), turn("assistant"), turn("user")]), "several turns are not read"),
    (row(messages=[turn(["user"])]), "several turns are not read"),
    (row(messages=[turn("user", 1)]), "'messages' must have texts"),
    (row(messages=[turn("user", [{"type": "text", "text": "Q?"}])]), "'messages' must have texts"),
    (row(response=None), "no 'response' (written form) and no 'annotated' (annotator form)"),
    (row(response=["A."]), "no 'response' (written form)"),
    (row(response=""), "the answer is empty"),
    (row(response='<promise topic="a" tokens="1"/><async></async>'), "the answer is empty"),
    (row(response="<async>nobody promised it</async>"), "PASTA"),
    (row(response=WITHOUT), "PASTA"),
    (row(response=None, annotated='<async topic="a">never closed'), "PASTA"),
]
WITHOUT_PROMPT = [
    (row(messages=None), "no prompt"),
    (row(messages=None, prompt=7), "no prompt"),
    (row(messages=None, question="Q?"), "no prompt"),
    (row(messages=[]), "no prompt"),
    (row(messages=[turn("user", "")]), "no prompt"),
]


@pytest.mark.parametrize(("line", "reason"), PROBLEMS + WITHOUT_PROMPT)
def test_an_invalid_line_is_named_by_file_and_number(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f"{row()}\n\n{line}\n{{also broken\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_records(path)
    assert caught.value.message.startswith(f"{path}:3: ")
    assert reason in caught.value.message


@pytest.mark.parametrize(("line", "reason"), PROBLEMS + WITHOUT_PROMPT)
def test_a_replay_reads_the_same_rows_and_needs_no_prompt(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(line, encoding="utf-8")
    answers, problems = read_annotated(path)
    if reason == "no prompt":
        assert ([answer.prompt for answer in answers], problems) == ([""], [])
    else:
        assert (answers, [problem.line for problem in problems]) == ([], [1])
        assert reason in problems[0].reason


def test_an_invalid_answer_is_reported_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(row(response="<async>nobody promised it</async>"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_records(path)
    assert caught.value.hint


def test_blank_lines_and_unknown_keys_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f"\n{row(score=3)}\n  \n", encoding="utf-8")
    assert read_records(path) == [Record("a", "Q?", parse("A."))]


@pytest.mark.parametrize(
    ("record", "part"),
    [
        (Record("bad", "Q?", Document()), "answer"),
        (Record("bad", "Q?", Document((Block("a", 1), Sync()))), "answer"),
        (Record("bad", "", parse("A.")), "prompt"),
    ],
)
def test_records_that_could_not_be_read_again_are_not_written(
    tmp_path: Path, record: Record, part: str
) -> None:
    path = tmp_path / "data.jsonl"
    with pytest.raises(InputError, match=f"record bad: its {part} is empty"):
        write_records(path, [*RECORDS, record])
    assert not path.exists()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    latin, fake = tmp_path / "latin.jsonl", tmp_path / "fake.jsonl.gz"
    latin.write_bytes(b"\xe9")
    fake.write_bytes(b"not gzip")
    absent = tmp_path / "absent.jsonl"
    for path in (latin, fake, absent, tmp_path):
        with pytest.raises(InputError, match="cannot be read|no such file") as caught:
            read_records(path)
        assert str(path) in caught.value.message


def test_files_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written") as caught:
        write_records(tmp_path / "absent" / "data.jsonl", RECORDS)
    assert "absent" in caught.value.message
