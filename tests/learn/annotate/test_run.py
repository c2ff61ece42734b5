"""Whole annotation runs against a scripted server: counted, bounded, killed, full, resumed."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pasta_lm.errors import InputError, RemoteError, UsageError
from pasta_lm.language import check
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.learn.annotate.filters import FilterConfig, Rejection, examine, speedup
from pasta_lm.learn.annotate.run import AnnotationRun, annotate
from pasta_lm.learn.annotate.teacher import TeacherConversation, read_prompt, unwrap
from pasta_lm.learn.chat.client import ChatReply
from pasta_lm.learn.data.annotated import read_records
from pasta_lm.run_folder import RunFolder
from tests.fakes.scripted_server import Faults, ScriptedReply, ScriptedServer
from tests.fakes.scripted_teacher import asked_answer, teacher_by_rule
from tests.learn.annotate.runs import (
    AT_ONCE,
    annotating,
    by_rule,
    files_of,
    kill_until_done,
    paid_for,
    recipe,
    stored_replies,
    write_recipe,
    write_source,
)

NUM_ROWS = 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source") / "source.jsonl", NUM_ROWS)


@pytest.fixture(scope="module")
def clean(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    with ScriptedServer(teacher_by_rule(wrong=0.3, hopeless=0.1)) as server:
        annotate(recipe(source, folder, server.base_url), policy=AT_ONCE)
        assert paid_for(server) == stored_replies(folder)
    return folder


def run(source: Path, folder: Path, server: ScriptedServer, **more: object) -> AnnotationRun:
    return annotate(recipe(source, folder, server.base_url, **more), policy=AT_ONCE)


def test_every_row_ends_once_and_its_text_is_unchanged(source: Path, clean: Path) -> None:
    rows = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    records = {record.id: record for record in read_records(clean / "annotated.jsonl")}
    failed = [json.loads(line) for line in (clean / "failed.jsonl").read_text().splitlines()]
    skipped = [row["id"] for row in rows if not row["output"]]
    assert sorted([*records, *(row["id"] for row in failed), *skipped]) == sorted(
        row["id"] for row in rows
    )
    assert {row["reason"] for row in failed} == {"text_changed"}
    assert all(len(row["replies"]) == 3 for row in failed)
    for row in rows:
        if row["id"] in records:
            assert records[row["id"]].document.plain_text == row["output"]
            assert records[row["id"]].prompt == row["instruction"]


def test_a_complete_run_sends_no_request(source: Path, clean: Path) -> None:
    with ScriptedServer(teacher_by_rule()) as server:
        before = files_of(clean)
        done = run(source, clean, server)
        assert (server.num_requests, files_of(clean)) == (0, before)
        assert len(done.tally.rows) == NUM_ROWS


def test_a_run_killed_at_random_moments_ends_like_an_uninterrupted_one(
    source: Path, clean: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    with ScriptedServer(teacher_by_rule(0.3, 0.1), Faults(latency_s=0.02)) as server:
        num_hit = kill_until_done(recipe(source, folder, server.base_url), server, Random(0))
    assert num_hit > 1
    assert files_of(folder) == files_of(clean)


@pytest.mark.parametrize("max_bytes", [300, 9_000])
def test_a_full_disk_corrupts_nothing_and_the_next_run_completes(
    source: Path, clean: Path, tmp_path: Path, max_bytes: int
) -> None:
    folder = tmp_path / "out"
    with ScriptedServer(teacher_by_rule(0.3, 0.1)) as server:
        file = write_recipe(tmp_path / "recipe.toml", recipe(source, folder, server.base_url))
        process = annotating(file, max_bytes=max_bytes)
        assert process.finish() == 1
        assert "cannot be written: File too large" in process.output
        assert (max_bytes > 1000) == bool(stored_replies(folder))
        run(source, folder, server)
    assert files_of(folder) == files_of(clean)


def test_two_processes_never_write_one_folder(source: Path, tmp_path: Path) -> None:
    config = recipe(source, tmp_path, "http://127.0.0.1:9/v1")
    with RunFolder(tmp_path).locked(), pytest.raises(UsageError, match="another process"):
        annotate(config, policy=AT_ONCE)


def test_changed_settings_and_a_changed_source_are_refused(source: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(source.read_bytes())
    folder = tmp_path / "out"
    with ScriptedServer(teacher_by_rule()) as server:
        config = recipe(mine, folder, server.base_url)
        annotate(config, limit=3, policy=AT_ONCE)
        for changed, name in [
            (replace(config, filters=FilterConfig(least_words=6)), "filters.least_words"),
            (recipe(source, folder, server.base_url), "source.file"),
            (recipe(mine, folder, server.base_url, temperature=1.0), "teacher.temperature"),
        ]:
            with pytest.raises(UsageError, match=name):
                annotate(changed, policy=AT_ONCE)
        annotate(recipe(mine, folder, server.base_url, timeout_s=9.0), limit=3, policy=AT_ONCE)
        mine.write_text(mine.read_text().replace("answer 1", "answer one"))
        with pytest.raises(InputError, match="row 2 was r1"):
            annotate(config, policy=AT_ONCE)


def test_a_server_that_is_gone_stops_the_run_and_its_rows_are_asked_again(
    source: Path, clean: Path, tmp_path: Path
) -> None:
    few = replace(AT_ONCE, max_requests=2)
    with pytest.raises(RemoteError, match="rows in a row"):
        annotate(recipe(source, tmp_path, "http://127.0.0.1:9/v1"), policy=few)
    with ScriptedServer(teacher_by_rule(0.3, 0.1)) as server:
        done = run(source, tmp_path, server)
    assert len(done.tally.rows) == NUM_ROWS
    assert files_of(tmp_path) == files_of(clean)


def test_duplicates_and_long_answers_are_skipped_by_name(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "p", "answer": "x " * 10},
        {"id": "a", "prompt": "p", "answer": "y " * 10},
        {"id": "b", "prompt": "p", "answer": "z " * 100},
        ["no", "object"],
    ]
    lines = [*map(json.dumps, rows), "no json", '{"prompt": "p", "answer": "q", "answer": "r"}']
    done = by_rule(tmp_path, lines, max_answer_characters=100)
    assert done.tally.num_rows == {"ok": 1, "skipped": 5}
    reasons = {reason for _, reason in done.tally.reasons}
    assert reasons == {"", "duplicate_id", "too_long", "not_json"}


def test_spaces_before_a_part_are_written_into_its_block(tmp_path: Path) -> None:
    listed = "Three:\n" + f"  - one two three four five{' six' * 9}\n" * 3
    run = by_rule(tmp_path, [json.dumps({"id": "a", "prompt": "p", "answer": listed})])
    record = json.loads(run.files[0].read_bytes())
    assert record["annotated"].count("> one two") == 3
    assert check(record["annotated"], "annotator") == []


A = "One two three four five six seven eight nine ten."
B = "Red orange yellow green blue indigo violet and then all again."
PLAIN = f"{A}\n\n{B}\n"
GOOD = f'<async topic="numbers">{A}</async>\n\n<async topic="colours">{B}</async>\n'

REJECTED = [
    ("a space is gone", GOOD.replace("</async>\n\n", "</async>\n"), "text_changed"),
    ("the end is gone", GOOD.rstrip("\n"), "text_changed"),
    ("not closed", GOOD.replace("</async>\n\n", "\n\n"), "malformed"),
    ("closed twice", GOOD.replace("</async>", "</async></async>"), "malformed"),
    ("a tag that cannot be read", GOOD.replace('"numbers"', '"numbers'), "malformed"),
    ("written form", GOOD.replace("<async t", "<promise t"), "malformed"),
    ("no topic", GOOD.replace(' topic="numbers"', ""), "topic_bounds"),
    ("blank topic", GOOD.replace("numbers", " "), "topic_bounds"),
    ("four words of topic", GOOD.replace("numbers", "one to ten all"), "topic_bounds"),
    ("an endless topic", GOOD.replace("numbers", "n" * 65), "topic_bounds"),
    ("a block in a block", f'<async topic="all">{GOOD}</async>', "nested"),
    ("a sync in a block", GOOD.replace("</async>", "<sync/></async>"), "malformed"),
    ("an empty block", GOOD + '<async topic="n"></async>', "block_bounds"),
    ("a sync for nothing", f"<sync/>{GOOD}", "idle_sync"),
    (
        "a block of four words",
        PLAIN.replace("One two three four", '<async topic="n">One two three four</async>'),
        "block_bounds",
    ),
    ("one block alone", f'<async topic="all">{A}\n\n{B}\n</async>', "no_gain"),
]


@pytest.mark.parametrize(
    ("annotated", "reason"), [case[1:] for case in REJECTED], ids=[case[0] for case in REJECTED]
)
def test_each_fault_has_its_code(annotated: str, reason: str) -> None:
    verdict = examine(annotated, PLAIN)
    assert isinstance(verdict, Rejection)
    assert verdict.reason == reason
    assert verdict.message


def test_a_space_before_a_tag_is_no_fault_and_moves() -> None:
    text = f"First: {A} Second: {B}"
    lone = f'First: <async topic="a">{A} </async>Second: <async topic="b">{B}</async>'
    kept = examine(lone, text)
    assert isinstance(kept, Document)
    assert kept == parse(lone, "annotator").with_spaces_after_tags()


def test_a_good_copy_and_one_without_tags_are_kept() -> None:
    kept = examine(GOOD, PLAIN)
    assert isinstance(kept, Document)
    assert kept.annotator_form() == GOOD
    assert speedup(kept) > 1
    assert examine(PLAIN, PLAIN) == kept.without_tags()


def test_a_block_may_be_as_long_as_its_bound() -> None:
    assert isinstance(examine(GOOD, PLAIN, FilterConfig(least_words=10, most_words=11)), Document)
    for least, most in ((11, 20), (1, 10)):
        verdict = examine(GOOD, PLAIN, FilterConfig(least_words=least, most_words=most))
        assert isinstance(verdict, Rejection)
        assert verdict.reason == "block_bounds"


def test_the_first_difference_is_shown() -> None:
    verdict = examine(GOOD.replace("violet", "purple"), PLAIN)
    assert isinstance(verdict, Rejection)
    assert all(shown in verdict.message for shown in ("line 3", "violet", "purple"))


ROOT = Path(__file__).parents[3]
TAG = re.compile(r'<async topic="[^"]*">|</async>|<sync/>')
IN_TAGS = [  # of which tag, which character is taken away, and what that makes of the answer
    ("</async>", 0, "malformed"),  # its "<"
    ("</async>", 1, "malformed"),  # its "/"
    ("</async>", -1, "malformed"),
    ("<async", 0, "malformed"),
    ("<async", -1, "malformed"),
    ("<async", -2, "malformed"),  # the quotation mark behind the topic
    ("<sync/>", 0, "text_changed"),  # what is left is text
    ("<sync/>", -2, "malformed"),
]


def annotated_answers(path: Path) -> list[tuple[str, str, str]]:
    opening = gzip.open if path.suffix == ".gz" else open
    with opening(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    if "annotated" in rows[0]:
        return [(row["id"], row["annotated"], row["output"]) for row in rows]
    documents = [(row["id"], parse(row["response"])) for row in rows]
    return [(id, one.annotator_form(), one.plain_text) for id, one in documents]


@pytest.mark.parametrize(
    ("name", "num_answers"),
    [("starter/starter", 1040), ("starter/second_pass", 200), ("annotated/gemma-7b-it", 704)],
)
def test_annotated_answers_pass_unless_one_character_is_changed(
    name: str, num_answers: int, request: pytest.FixtureRequest
) -> None:
    if name.startswith("starter"):
        path = ROOT / "corpora" / f"{name}.jsonl"
    else:
        path = request.getfixturevalue("shared_data") / f"{name}.jsonl.gz"
    answers = annotated_answers(path)
    assert len(answers) == num_answers
    random, altered_tags = Random(0), set()
    for id, annotated, original in answers:
        assert isinstance(examine(annotated, original), Document), id
        assert expect(altered_text(annotated, random), original, "text_changed"), id
        for altered, case in altered_tag(annotated, random):
            altered_tags.add(case[:2])
            assert expect(altered, original, case[2]), (id, case)
    assert altered_tags == {case[:2] for case in IN_TAGS}


def expect(altered: str, original: str, reason: str) -> bool:
    verdict = examine(altered, original)
    return isinstance(verdict, Rejection) and verdict.reason == reason


def altered_text(annotated: str, random: Random) -> str:
    """Return a copy with one character of the text, inside a block or not, put in or changed."""
    in_tags = {at for tag in TAG.finditer(annotated) for at in range(*tag.span())}
    at = random.choice([at for at in range(len(annotated)) if at not in in_tags])
    other = "~" if annotated[at] != "~" else "^"
    end = random.choice([at, at + 1])
    return f"{annotated[:at]}{other}{annotated[end:]}"


def altered_tag(annotated: str, random: Random) -> list[tuple[str, tuple[str, int, str]]]:
    """Return a copy that lacks one character of a tag; none if there is no tag."""
    tag = random.choice(list(TAG.finditer(annotated)) or [None])
    if tag is None:
        return []
    case = random.choice([one for one in IN_TAGS if tag[0].startswith(one[0])])
    at = tag.end() + case[1] if case[1] < 0 else tag.start() + case[1]
    return [(annotated[:at] + annotated[at + 1 :], case)]


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
        (ChatReply("<answer>\nSomething else.\n</answer>"), "text_changed"),
        (ChatReply("<answer>\n<async>x</async>\n</answer>"), "topic_bounds"),
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
    reasons = {None, "refused", "cut_off", *(reason for _, _, reason in REJECTED)}
    assert {row["expected"].get("reason") for row in ROWS} == reasons
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
