"""Replies as teachers give them, through the whole path: each row ends as it should.

``teacher_replies.jsonl`` holds answers, what a teacher says of each, turn by turn, and how the row
must end. The replies were written for this test, after the ways in which models err.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.learn.annotate.filters import Reason
from pasta_lm.learn.annotate.run import annotate
from pasta_lm.learn.data.annotated import read_records
from tests.fakes.scripted_server import Faults, ScriptedReply, ScriptedServer
from tests.fakes.scripted_teacher import asked_answer
from tests.learn.annotate.runs import AT_ONCE, recipe

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
