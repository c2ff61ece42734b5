from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.learn.annotate.filters import Reason, Rejection, examine, speedup
from pasta_lm.learn.annotate.run import annotate
from pasta_lm.learn.annotate.teacher import TeacherConversation, read_prompt, unwrap
from pasta_lm.learn.chat.client import ChatReply
from pasta_lm.learn.data.annotated import read_records
from tests.fakes.scripted_server import Faults, ScriptedReply, ScriptedServer
from tests.fakes.scripted_teacher import asked_answer, marked
from tests.learn.annotate.runs import AT_ONCE, recipe

ANSWER = f"One <sync/> two{' three' * 9}.\n\nSix &lt;sync/&gt; seven{' eight' * 9}.\n"

SHOWN = {  # blocks, syncs
    "1_sections": (3, 0),
    "2_list_items": (4, 0),
    "3_hidden_in_a_paragraph": (3, 0),
    "4_two_rounds": (4, 1),
    "5_computed_conclusion": (2, 1),
    "6_dependent_list": (0, 0),
    "7_short_answer": (0, 0),
}


@pytest.mark.parametrize("one", read_prompt().demonstrations, ids=lambda one: one.name)
def test_each_demonstration_matches_its_name_and_passes_the_filters(one) -> None:
    document = parse(one.annotated, Form.ANNOTATOR)
    kept = examine(one.annotated, document.plain_text)
    assert isinstance(kept, Document)
    assert (len(kept.blocks), kept.num_syncs) == SHOWN[one.name]
    assert speedup(kept) > 1.2 or not kept.blocks
    has_lines = any("\n" in block.plain_text for block in kept.blocks)
    assert not (one.name.startswith("3") and ("\n" in document.plain_text or has_lines))


def test_seven_demonstrations_precede_the_answer() -> None:
    prompt = read_prompt()
    assert [one.name for one in prompt.demonstrations] == list(SHOWN)
    roles = [one["role"] for one in prompt.messages("Why?", ANSWER)]
    assert roles == ["system", *["user", "assistant"] * 7, "user"]


def test_an_answer_that_spells_tags_is_unchanged() -> None:
    talk = TeacherConversation("Why?", ANSWER)
    asked = talk.messages[-1]["content"]
    assert "One &lt;sync/> two" in asked
    assert asked_answer(talk.messages) == ANSWER
    talk.feed(ChatReply(f"<answer>\n{marked(ANSWER)}\n</answer>"))
    assert isinstance(talk.outcome, Document)
    assert talk.outcome.plain_text == ANSWER


@pytest.mark.parametrize(
    ("reply", "copy"),
    [
        ("<answer>\nx\n</answer>", "x"),
        ("Here:\n<answer>\n\nx\n\n</answer>\nDone.", "\nx\n"),
        ("<answer>x</answer>", "x"),
        ("<answer>\nx </answer> y\n</answer>", "x </answer> y"),
        ("x\n", "x\n"),
        ("</answer>x<answer>", "</answer>x<answer>"),
    ],
)
def test_the_copy_is_the_text_between_the_marks(reply: str, copy: str) -> None:
    assert unwrap(reply) == copy


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (ChatReply("<answer>\nSomething else.\n</answer>"), Reason.TEXT_CHANGED),
        (ChatReply("<answer>\n<async>x</async>\n</answer>"), Reason.TOPIC_BOUNDS),
        (ChatReply("", refusal="No."), "refused"),
        (ChatReply("  "), "refused"),
        (ChatReply("<answer>\nOne", finish_reason="length"), "cut_off"),
    ],
)
def test_a_rejected_copy_is_returned_with_the_diagnostic_twice(
    reply: ChatReply, reason: str
) -> None:
    talk = TeacherConversation("Why?", ANSWER)
    first = len(talk.messages)
    for number in (1, 2):
        talk.feed(reply)
        assert talk.outcome is None
        assert len(talk.messages) == first + 2 * number
        assert f"({reason})" in talk.messages[-1]["content"]
        assert "{" not in talk.messages[-1]["content"]
        assert asked_answer(talk.messages) == ANSWER
    talk.feed(reply)
    assert isinstance(talk.outcome, Rejection)
    assert talk.outcome.reason == reason


ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("teacher_replies.jsonl").read_bytes().splitlines()
]
FAULTS = Faults(too_many=0.05, server_error=0.1, truncated=0.03, broken_off=0.02, seed=3)


def play(asked: Mapping[str, Any]) -> ScriptedReply:
    """Say what stands in the file for this answer, after so many corrections."""
    answer = asked_answer(asked["messages"])
    (row,) = (row for row in ROWS if row["answer"] == answer)
    num_returned = sum("cannot be used" in one["content"] for one in asked["messages"])
    return ScriptedReply(**row["replies"][num_returned])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a run over all rows wrote, against a server that fails now and then."""
    folder = tmp_path_factory.mktemp("replies")
    source = folder / "source.jsonl"
    keys = ("id", "prompt", "answer")
    source.write_text("".join(json.dumps({key: row[key] for key in keys}) + "\n" for row in ROWS))
    with ScriptedServer(play, FAULTS) as server:
        done = annotate(recipe(source, folder / "out", server.base_url), policy=AT_ONCE)
        assert set(server.paid.values()) == {1}
        assert server.num_requests <= 1.6 * done.tally.spent.num_replies  # 1.25 expected
    assert not done.is_interrupted
    assert +done.tally.reasons == Counter(
        (row["expected"]["status"], row["expected"].get("reason", "")) for row in ROWS
    )
    assert done.tally.spent.num_replies == sum(row["expected"]["replies"] for row in ROWS)
    return folder / "out"


def test_the_file_contains_every_reason_and_no_answer_twice() -> None:
    assert {row["expected"].get("reason") for row in ROWS} == {None, *Reason}
    assert len({row["answer"] for row in ROWS}) == len({row["id"] for row in ROWS}) == len(ROWS)
    assert all(row["expected"]["replies"] == len(row["replies"]) for row in ROWS)


def test_the_records_are_the_accepted_rows_with_their_blocks_and_syncs(folder: Path) -> None:
    kept = [row for row in ROWS if row["expected"]["status"] == "ok"]
    records = read_records(folder / "annotated.jsonl")
    assert [
        (one.id, one.document.plain_text, len(one.document.blocks), one.document.num_syncs)
        for one in records
    ] == [
        (row["id"], row["answer"], row["expected"]["blocks"], row["expected"]["syncs"])
        for row in kept
    ]


def test_the_failures_keep_all_replies(folder: Path) -> None:
    lines = (folder / "failed.jsonl").read_bytes().splitlines()
    found = {row["id"]: row for row in map(json.loads, lines)}
    expected = {row["id"]: row for row in ROWS if row["expected"]["status"] == "failed"}
    assert list(found) == list(expected)
    for id, row in expected.items():
        assert found[id]["reason"] == row["expected"]["reason"], id
        said = [None if one.get("refusal") else one["text"] for one in row["replies"]]
        assert found[id]["replies"] == said
