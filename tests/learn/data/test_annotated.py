"""Annotated data survives the disk, and a line that is no record is named by file and number."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pasta_lm.errors import InputError
from pasta_lm.language.document import Block, Document, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.parser import FORK_TOPIC, Form
from pasta_lm.learn.data.annotated import Record, read_annotated, read_records, write_records
from pasta_lm.learn.data.layout import Layout, apar_document, parts, points_of
from tests.learn.data.examples import documents

WITH_LENGTHS = 'Two.<promise topic="a" tokens="1"/><async>one</async><sync/>End.'
WITHOUT = 'Two.<async topic="a">one</async><sync/>End.'
NO_PROMISE = "<async>nobody promised it</async>"
RECORDS = [
    Record("plain", "Say hello.", parse("Hello.")),
    Record("written", "Q?", parse(WITH_LENGTHS), "made"),
    Record("annotated", "Q?", parse(WITHOUT, "annotator"), "teacher"),
    Record("odd", "Is <sync/> a tag?\n\u2028\u00e9 \x85", Document((Text("<sync/>\r\n is text"),))),
    Record("mixed", " ", Document((Block("a", 2), Block("b", None, (Text("x"),)), Sync()))),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def row(**changes: Any) -> str:
    """Return a good line with some keys changed; None leaves a key out."""
    good = {"id": "a", "messages": [{"role": "user", "content": "Q?"}], "response": "A."}
    return json.dumps({key: value for key, value in (good | changes).items() if value is not None})


def turn(role: Any, content: Any = "Q?") -> dict[str, Any]:
    return {"role": role, "content": content}


def without_lengths(record: Record) -> list[object]:
    document = record.document
    blocks = [(block.topic, block.items) for block in document.blocks]
    return [record.id, record.prompt, document.plain_text, blocks, document.num_syncs]


def test_records_are_read_as_they_were_written(path: Path) -> None:
    write_records(path, iter(RECORDS))
    back = read_records(path)
    assert back[:4] == RECORDS[:4]
    # One length that nobody knows: the annotator form has none.
    assert [block.units for block in back[4].document.blocks] == [None, None]
    lines = path.read_text(encoding="utf-8").split("\n")
    for line, record, key, text in zip(
        lines,
        RECORDS[:3],
        ("response", "response", "annotated"),
        ("Hello.", WITH_LENGTHS, WITHOUT),
        strict=False,
    ):
        rest = {"id": record.id, "messages": [turn("user", record.prompt)], "source": record.source}
        assert json.loads(line) == {**rest, key: text}


def test_a_record_has_its_spaces_after_tags_wherever_they_stood(path: Path) -> None:
    lone, moved = 'Two: <async topic="a">one</async>', 'Two:<async topic="a"> one</async>'
    path.write_text(row(response=None, annotated=lone))
    (record,) = read_records(path)
    assert record.document.annotator_form() == moved
    write_records(path, [record])
    assert json.loads(path.read_text())["annotated"] == moved


nonempty = documents.filter(lambda document: document.plain_text != "")
names, prompts = st.text("abc", min_size=1), st.text(min_size=1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.builds(Record, names, prompts, nonempty, st.text())))
def test_any_records_can_be_written_and_read_again(path: Path, records: list[Record]) -> None:
    write_records(path, records)
    back = read_records(path)
    assert list(map(without_lengths, back)) == list(map(without_lengths, records))
    for record, other in zip(records, back, strict=True):
        knows_all = all(block.units is not None for block in record.document.blocks)
        assert record.source == other.source
        assert not knows_all or record.document == other.document


BRIEF = turn("system", "Be brief.")
TALK = [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Q?"}]
PARTS = [{"type": "text", "text": "Q"}, {"type": "text", "text": "?"}]


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        (
            {"messages": [turn("user")], "score": 3, "output": " A.", "source_id": "x"},
            [turn("user")],
        ),
        ({"prompt": "P?", "title": "P?", "url": "x", "input": ""}, [turn("user", "P?")]),
        ({"prompt": [BRIEF, turn("user")]}, [BRIEF, turn("user")]),
        ({"instruction": "Sum up.", "input": "A dog."}, [turn("user", "Sum up.\n\nA dog.")]),
        ({"instruction": "I?", "context": "A dog."}, [turn("user", "I?\n\nA dog.")]),
        ({"system": "Be brief.", "prompt": "Q?"}, [BRIEF, turn("user")]),
        ({"system_prompt": "Be brief.", "question": "Q?"}, [BRIEF, turn("user")]),
        ({"messages": [BRIEF, turn("user")]}, [BRIEF, turn("user")]),
        ({"messages": [turn("developer", "Be brief."), turn("user")]}, [BRIEF, turn("user")]),
        ({"messages": [turn("user", "P?"), turn("user")]}, [turn("user", "P?"), turn("user")]),
        ({"messages": [{"content": PARTS, "name": "me"}]}, [turn("user", "Q\n?")]),
        ({"conversations": TALK}, [BRIEF, turn("user")]),
        (
            {"conversations": [*TALK, {"from": "gpt", "value": "A."}], "response": None},
            [BRIEF, turn("user")],
        ),
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_prompt_of_a_row_is_its_messages_in_the_keys_of_any_data_set(
    path: Path, changes: dict[str, Any], messages: list[Any], ending: str
) -> None:
    line = row(**{"messages": None} | changes)
    path, data = path.with_name(path.name + ending), f"\n{line}\n  \n".encode()
    path.write_bytes(gzip.compress(data) if ending else data)
    (record,) = read_records(path)
    *before, last = messages
    assert record == Record("a", last["content"], parse("A."), turns=tuple(before))
    assert record.messages == messages


UNREAD = [
    ({"prompt": "Not this."}, "'prompt'"),
    ({"history": [["Why?", "So."]]}, "'history'"),
    ({"output": "Another answer."}, "'output'"),
    ({"annotated": "Another answer."}, "'annotated'"),
    ({"messages": None, "prompt": "Q?", "input": "A dog."}, "'input'"),
    ({"messages": [BRIEF, turn("user")], "system": "Rhyme."}, "'system' is a second system"),
    ({"messages": [turn("user") | {"tool_calls": [{"id": "x"}]}]}, "'tool_calls'"),
    ({"messages": [turn("user"), turn("tool"), turn("user")]}, "message 2 .* the role 'tool'"),
    (
        {"messages": [turn("user", [{"type": "image_url"}])]},
        "texts under 'content', not 'image_url'",
    ),
    ({"messages": [turn("user"), turn("assistant", "B.") | {"thinking": "Hm."}]}, "'thinking'"),
    ({"messages": [turn("user"), BRIEF]}, "the last a question"),
    ({"reasoning_content": ["Hm."]}, "'reasoning_content' is no text"),
]


@pytest.mark.parametrize(("changes", "reason"), UNREAD)
def test_text_that_is_not_read_is_refused_by_its_key(
    path: Path, changes: dict[str, Any], reason: str
) -> None:
    path.write_text(row(**changes), encoding="utf-8")
    with pytest.raises(InputError, match=reason) as caught:
        read_records(path)
    assert "data.jsonl:1: " in caught.value.message


TWO = '<promise topic="a" tokens="1"/><async> A.</async> B'
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "response": TWO, "reasoning_content": "Hm."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "So <async> it is"},
    {"role": "user", "content": "Three?"},
]


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_record_has_a_whole_conversation(path: Path, is_whole: bool) -> None:
    last = {"role": "assistant", "response": "A.", "reasoning_content": "Well."}
    beside = {"response": "A.", "reasoning_content": "Well."}
    line = (
        row(messages=[*TURNS, last], response=None) if is_whole else row(messages=TURNS, **beside)
    )
    path.write_text(line, encoding="utf-8")
    (record,) = read_records(path)
    assert (record.prompt, record.reasoning, record.document) == ("Three?", "Well.", parse("A."))
    contents = [turn["content"] for turn in record.messages]
    assert contents == ["Be brief.", "One?", " A. B", "Two?", "So <async> it is", "Three?"]
    write_records(path, [record])
    assert read_records(path) == [record]


def test_each_answer_of_a_conversation_is_a_record_that_ends_there(path: Path) -> None:
    path.write_text(row(messages=TURNS), encoding="utf-8")
    first, second, last = read_records(path)[0].each_answer()
    assert (first.id, first.prompt, first.reasoning) == ("a/2", "One?", "Hm.")
    assert (first.document, first.messages) == (parse(TWO), TURNS[:2])
    assert (second.id, second.prompt, second.reasoning) == ("a/4", "Two?", None)
    assert second.document.plain_text == "So <async> it is"
    assert len(second.messages) == 4
    assert last.id == "a"


@pytest.mark.parametrize(
    ("changes", "name", "source"),
    [
        ({"id": 7, "source": "made"}, "7", "made"),
        ({"id": 0, "source": 3}, "0", "3"),
        ({"id": None}, "2", ""),
        ({"id": ""}, "2", ""),
    ],
)
def test_a_record_without_an_id_gets_its_line_number(
    path: Path, changes: dict[str, object], name: str, source: str
) -> None:
    path.write_text(f"\n{row(**changes)}\n", encoding="utf-8")
    assert [(record.id, record.source) for record in read_records(path)] == [(name, source)]


PROBLEMS = [
    ("{broken", "not JSON"),
    ("[1, 2]", "not a JSON object"),
    (row(messages="Q?"), "'messages' must be a list of objects"),
    (row(messages=[turn("assistant"), turn("user")]), "questions and answers in turn"),
    (row(messages=[turn("user"), turn("assistant")] * 2), "stands both in 'messages'"),
    (row(messages=[turn(["user"])]), "has the role ['user']"),
    (row(messages=[turn("user", None)]), "'messages' must have texts"),
    (row(messages=None, prompt=7), "'prompt' must be a text or a list"),
    (row(response=None), "no 'response' (written form) and no 'annotated' (annotator form)"),
    (row(response='<promise topic="a" tokens="1"/><async></async>'), "the answer is empty"),
    (row(response=NO_PROMISE), "PASTA"),
    (row(response=None, annotated='<async topic="a">never closed'), "PASTA"),
]
WITHOUT_PROMPT = [(row(messages=[]), "no prompt"), (row(messages=[turn("user", "")]), "no prompt")]


@pytest.mark.parametrize(("line", "reason"), PROBLEMS + WITHOUT_PROMPT)
def test_an_invalid_line_is_named_by_file_and_number_and_a_replay_needs_no_prompt(
    path: Path, line: str, reason: str
) -> None:
    path.write_text(f"{row()}\n\n{line}\n{{also broken\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_records(path)
    assert caught.value.message.startswith(f"{path}:3: ")
    assert reason in caught.value.message
    assert caught.value.hint or reason != "PASTA"
    answers, problems = read_annotated(path)
    is_broken = reason != "no prompt"
    assert [answer.prompt for answer in answers] == ["Q?"] + [""] * (not is_broken)
    assert [problem.line for problem in problems] == [3] * is_broken + [4]


@pytest.mark.parametrize(
    ("record", "part"),
    [
        (Record("bad", "Q?", Document((Block("a", 1), Sync()))), "answer"),
        (Record("bad", "", parse("A.")), "prompt"),
    ],
)
def test_records_that_could_not_be_read_again_are_not_written(
    path: Path, record: Record, part: str
) -> None:
    with pytest.raises(InputError, match=f"record bad: its {part} is empty"):
        write_records(path, [*RECORDS, record])
    assert not path.exists()


ITEM, SECTION, BOLD, ROW, LINE = get_args(Layout)

CASES = [
    ("One sentence. And another one.", [(LINE, "One sentence. And another one.")]),
    ("- a\n- b", [(ITEM, "- a"), (ITEM, "- b")]),
    ("1. a\n   more\n   - inner\n2. b\n", [(ITEM, "1. a\n   more\n   - inner"), (ITEM, "2. b")]),
    ("1) a\n\n2) b\n\nSo.", [(ITEM, "1) a"), (ITEM, "2) b"), (LINE, "So.")]),
    ("First, a.\nSecond, b.", [(ITEM, "First, a."), (ITEM, "Second, b.")]),
    ("First a.", [(LINE, "First a.")]),
    ("12 of them", [(LINE, "12 of them")]),
    ("Intro:\n\n## A\nx\n\ny\n\n### A1\nz\n\n## B\nw", [
        (LINE, "Intro:"), (SECTION, "## A\nx\n\ny\n\n### A1\nz"), (SECTION, "## B\nw"),
    ]),
    ("**A**: x\n__B:__ y\n**not closed", [(BOLD, "**A**: x"), (BOLD, "__B:__ y"),
                                          (LINE, "**not closed")]),
    ("| n | t |\n|---|---|\n| A | x |\n| B | y |", [
        (LINE, "| n | t |\n|---|---|"), (ROW, "| A | x |"), (ROW, "| B | y |"),
    ]),
    ("Run:\n```sh\n# x\n\n- y\n```\n- z", [
        (LINE, "Run:"), (LINE, "```sh\n# x\n\n- y\n```"), (ITEM, "- z"),
    ]),
    ("- a\n  ```\n1. b\n  ```\n- c", [(ITEM, "- a\n  ```\n1. b\n  ```"), (ITEM, "- c")]),
    ("````\n```\n# x\n````\n~~~\n# y", [(LINE, "````\n```\n# x\n````"), (LINE, "~~~\n# y")]),
    ("| A | x |\n| B | y |", [(ROW, "| A | x |"), (ROW, "| B | y |")]),
    ("", []),
    ("  \n ", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_layout_is_read_line_by_line(text: str, expected: list[tuple[Layout, str]]) -> None:
    assert [(part.layout, part.text) for part in parts(text)] == expected


LINES = st.sampled_from(
    ["# A", "```", "- b", "  - c", "1. d: e", "**f** g", "| h |", "i j.", "", " "]
)


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_parts_and_the_space_between_them_are_the_text(text: str) -> None:
    found = parts(text)
    assert "".join(part.before + part.text for part in found) == text.rstrip()
    assert not any(part.before.strip() for part in found)


@pytest.mark.parametrize(
    ("text", "lead"),
    [
        ("1. Dimbra: by bus, a long way.", "Dimbra"),
        ("Second, Step 2: net goes there.", "Step 2"),
        ("**The Blue Room:** it is blue.", "The Blue Room"),
        ("| Wire | stands there |", "Wire"),
        ("## A heading\nand text", "A heading"),
        ("Ada Berg stands for swimming.", "Ada Berg "),
        ("- at 10:30 or so", "at 10:30 or so"),
    ],
)
def test_a_lead_is_a_label_a_cell_a_heading_a_name_or_the_line(text: str, lead: str) -> None:
    assert parts(text)[0].lead == lead


@pytest.mark.parametrize(
    ("text", "num_forks"),
    [
        ("1. A: one two three\n2. B: one two three\n3. C: one two three", 3),
        ("1. A: one two three\n2. B: one two three", 0),  # two are too few
        ("1) A: one two three\n2) B: one two three\n3) C: one two three", 0),  # other marks
        ("A b. One two three.\n\nC d. One two three.\n\nE f. One two three.", 3),
        ("A b. One two three.\nC d. One two three.\nE f. One two three.", 0),  # lines
        ("1. A: 1 + 1 = 2, and so\n2. B: one two three\n3. C: one two three", 0),  # mathematics
    ],
)
def test_apars_rules_fork_labelled_items_or_paragraphs(text: str, num_forks: int) -> None:
    document = apar_document(text)
    assert document.plain_text == text
    assert len(document.blocks) == num_forks


@pytest.mark.parametrize(
    ("text", "points"),
    [
        (
            'See: <async topic="a">A.</async>, <async topic="b">B.</async> Done.',
            [("a", "See: A."), ("b", ", B. Done.")],
        ),
        ('<async topic="a">A.</async><async topic="b">B.</async>', [("a", "A."), ("b", "B.")]),
        # What waits for another, or is alone, is a single point: it has no skeleton.
        ('<async topic="a">A.</async><sync/><async topic="b">B.</async>', [(FORK_TOPIC, "A.B.")]),
        ('So <async topic="a">A.</async>', [(FORK_TOPIC, "So A.")]),
        ("So it is.", [(FORK_TOPIC, "So it is.")]),
    ],
)
def test_the_points_of_an_answer_are_its_blocks_and_the_text_in_front(
    text: str, points: list[tuple[str, str]]
) -> None:
    document = parse(text, Form.ANNOTATOR)
    items = tuple(Block(topic, None, (Text(inside),)) for topic, inside in points)
    assert points_of(document) == Document(items)
    assert points_of(document).plain_text == document.plain_text
