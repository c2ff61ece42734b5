"""The own and the written answers are as their cards say: of our instructions, by their rules."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lab.tests.corpora.test_instructions import grams, prompts_of_tests  # noqa: F401
from pasta_lab import corpora
from pasta_lm.journal import read_lines
from pasta_lm.language.check import check
from pasta_lm.language.document import Document, parse
from pasta_lm.language.tags import units_for
from pasta_lm.learn.annotate.filters import examine, speedup
from pasta_lm.learn.annotate.own_answers import why_unusable
from pasta_lm.models.annotated import read_ids, read_records

ROOT = Path(__file__).parents[3]
KEYS = ["id", "messages", "response", "shape", "parts", "source", "licence", "provenance"]
INSTRUCTIONS = ROOT / "corpora" / "instructions"
OWN, WRITTEN = "own", "written"
HELD_OUT = {OWN: ["held_out.txt"], WRITTEN: ["held_out.txt", "development.txt"]}
FILES = {OWN: corpora.OWN_ROWS, WRITTEN: corpora.WRITTEN_ROWS}
FOLDERS = {OWN: corpora.OWN, WRITTEN: corpora.WRITTEN}
READING = corpora.OWN / "starter_reading.jsonl"
COUNTS = corpora.OWN / "own_answers.counts.json"
LEAST_ROWS = 900
LEAST_WORDS = 5
MOST_TOPIC_WORDS = 3
TEST_GRAM = 13  # words in a row; shorter runs are idioms ("one of the most important things in")

both = pytest.mark.parametrize("corpus", [OWN, WRITTEN])


@cache
def rows(corpus: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_lines(FILES[corpus])]


@cache
def documents(corpus: str) -> dict[str, Document]:
    return {row["id"]: parse(row["response"]) for row in rows(corpus)}


@cache
def instructions() -> dict[str, dict[str, Any]]:
    found = map(json.loads, read_lines(INSTRUCTIONS / "instructions.jsonl"))
    return {row["id"]: row for row in found}


@both
def test_every_row_names_an_instruction_of_ours_once_and_in_order(corpus: str) -> None:
    ids = [row["id"] for row in rows(corpus)]
    assert ids == [name for name in instructions() if name in documents(corpus)]
    for row in rows(corpus):
        asked = instructions()[row["id"]]
        assert list(row) == KEYS
        assert row["messages"] == [{"role": "user", "content": asked["instruction"]}]
        assert (row["shape"], row["parts"]) == (asked["shape"], asked["parts"])
        assert row["licence"] == "Apache-2.0"


def test_there_are_enough_own_answers_and_all_name_the_model() -> None:
    assert len(rows(OWN)) >= LEAST_ROWS
    assert len({row["source"] for row in rows(OWN)}) == 1
    assert len({row["provenance"] for row in rows(OWN)}) <= 2
    assert all("SmolLM2-135M-Instruct" in row["provenance"] for row in rows(OWN))


@both
def test_no_held_out_instruction_is_answered(corpus: str) -> None:
    for name in HELD_OUT[corpus]:
        assert not documents(corpus).keys() & {*read_ids(INSTRUCTIONS / name)}


@both
def test_every_answer_is_valid_without_a_warning(corpus: str) -> None:
    found = {row["id"]: check(row["response"]) for row in rows(corpus)}
    assert {name: problems for name, problems in found.items() if problems} == {}


@both
def test_blocks_have_enough_words_and_short_topics(corpus: str) -> None:
    for name, document in documents(corpus).items():
        for block in document.blocks:
            assert len(block.plain_text.split()) >= LEAST_WORDS, name
            assert 1 <= len(block.topic.split()) <= MOST_TOPIC_WORDS, name


def test_every_annotation_of_an_own_answer_is_one_that_the_filters_accept() -> None:
    for name, document in documents(OWN).items():
        assert examine(document.annotator_form(), document.plain_text) == parse(
            document.annotator_form(), "annotator"
        ), name
        assert not document.blocks or speedup(document) > 1, name


def test_written_answers_fork_as_the_card_says() -> None:
    for row in rows(WRITTEN):
        document = documents(WRITTEN)[row["id"]]
        assert len(document.blocks) != 1, row["id"]
        assert not (row["parts"] == "one" and document.blocks), row["id"]
        assert not document.num_syncs or document.blocks, row["id"]
        topics = Counter(block.topic.lower() for block in document.blocks)
        assert max(topics.values(), default=1) == 1, row["id"]


@both
def test_the_space_before_a_tag_stands_behind_it_and_lengths_are_possible(corpus: str) -> None:
    for name, document in documents(corpus).items():
        assert document == document.with_spaces_after_tags(), name
        for block in document.blocks:  # from a token for each word to one for each byte
            fewest, most = len(block.plain_text.split()), len(block.plain_text.encode())
            assert units_for(fewest) <= (block.units or 0) <= units_for(most + 2), name


def test_every_own_answer_passes_the_rules_of_the_card() -> None:
    for row in rows(OWN):
        text = documents(OWN)[row["id"]].plain_text
        assert why_unusable(row["messages"][0]["content"], text) is None, row["id"]


@both
def test_no_answer_shares_thirteen_words_in_a_row_with_a_prompt_of_a_test(
    corpus: str,
    prompts_of_tests: dict[str, str],  # noqa: F811
) -> None:
    tested = frozenset().union(*(grams(text, TEST_GRAM) for text in prompts_of_tests.values()))
    texts = {name: document.plain_text for name, document in documents(corpus).items()}
    assert [name for name, text in texts.items() if grams(text, TEST_GRAM) & tested] == []


def test_the_counts_of_what_was_left_out_add_up() -> None:
    counts = json.loads(COUNTS.read_text("utf-8"))
    left_out = sum(counts["rules"].values()) + sum(counts["reader"].values())
    assert counts["sampled"] == left_out + counts["not_read"] + counts["twice"] + len(rows(OWN))


@both
def test_the_card_has_the_figures_of_the_files(corpus: str) -> None:
    _, mark, figures = (FOLDERS[corpus] / "README.md").read_text("utf-8").partition(corpora.MARK)
    assert mark
    assert figures == corpora.card(FOLDERS[corpus])


def test_the_card_of_the_own_answers_names_every_reason() -> None:
    card = (corpora.OWN / "README.md").read_text("utf-8").partition(corpora.MARK)[0]
    for reason in json.loads(COUNTS.read_text("utf-8"))["rules"]:
        assert f"| `{reason}` | " in card


def test_the_reading_of_the_starter_is_of_its_held_out_answers() -> None:
    held_out = {*read_ids(ROOT / "corpora" / "starter" / "held_out.txt")}
    assert set(texts_of(READING)) == held_out
    assert texts_of(READING).items() <= texts_of(corpora.SECOND_PASS).items()


def test_the_second_reading_is_of_the_same_answers() -> None:
    again = texts_of(corpora.OWN / "second_reading.jsonl")
    assert len(again) >= 90
    assert again.items() <= texts_of(FILES[OWN]).items()


def texts_of(path: Path) -> dict[str, tuple[str, str]]:
    """Return the prompt and the plain text of each record of a file."""
    return {one.id: (one.prompt, one.document.plain_text) for one in read_records(path)}
