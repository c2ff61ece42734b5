"""The own answers are as their card says: usable, annotated by the rules, of our instructions."""

from __future__ import annotations

import json
import runpy
from functools import cache
from pathlib import Path
from typing import Any

from pasta_lm.annotate.filters import examine, speedup
from pasta_lm.annotate.own_answers import why_unusable
from pasta_lm.engines.annotated import read_lines, read_records
from pasta_lm.language.check import check
from pasta_lm.language.document import Document, parse
from pasta_lm.language.tags import units_for
from tests.data.test_instructions import grams, prompts_of_tests  # noqa: F401

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "starter.py"))
KEYS = ["id", "messages", "response", "shape", "parts", "source", "licence", "provenance"]
INSTRUCTIONS = ROOT / "corpora" / "instructions"
LEAST_ROWS = 900
LEAST_WORDS = 5
MOST_TOPIC_WORDS = 3
TEST_GRAM = 13  # words in a row; shorter runs are idioms ("one of the most important things in")


@cache
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_lines(SCRIPT["own_rows"]())]


@cache
def documents() -> dict[str, Document]:
    return {row["id"]: parse(row["response"]) for row in rows()}


@cache
def instructions() -> dict[str, dict[str, Any]]:
    found = map(json.loads, read_lines(INSTRUCTIONS / "instructions.jsonl"))
    return {row["id"]: row for row in found}


def test_there_are_enough_of_them_each_of_another_instruction_in_order() -> None:
    ids = [row["id"] for row in rows()]
    assert len(ids) >= LEAST_ROWS
    assert ids == [name for name in instructions() if name in set(ids)]


def test_every_row_names_its_instruction_and_its_source() -> None:
    for row in rows():
        asked = instructions()[row["id"]]
        assert list(row) == KEYS
        assert row["messages"] == [{"role": "user", "content": asked["instruction"]}]
        assert (row["shape"], row["parts"]) == (asked["shape"], asked["parts"])
        assert row["licence"] == "Apache-2.0"
        assert "SmolLM2-135M-Instruct" in row["provenance"]
    assert len({row["source"] for row in rows()}) == 1
    assert len({row["provenance"] for row in rows()}) <= 2


def test_no_held_out_instruction_is_answered() -> None:
    held_out = (INSTRUCTIONS / "held_out.txt").read_text("utf-8").split()
    assert not documents().keys() & set(held_out)


def test_every_answer_is_valid_without_a_warning() -> None:
    assert {row["id"]: check(row["response"]) for row in rows() if check(row["response"])} == {}


def test_every_annotation_is_one_that_the_filters_accept() -> None:
    for name, document in documents().items():
        assert examine(document.annotator_form(), document.plain_text) == parse(
            document.annotator_form(), "annotator"
        ), name
        assert not document.blocks or speedup(document) > 1, name
        for block in document.blocks:
            assert len(block.plain_text.split()) >= LEAST_WORDS, name
            assert len(block.topic.split()) <= MOST_TOPIC_WORDS, name


def test_the_space_before_a_tag_stands_behind_it() -> None:
    for name, document in documents().items():
        assert document == document.with_spaces_after_tags(), name


def test_lengths_are_between_those_of_one_token_a_word_and_one_a_byte() -> None:
    for name, document in documents().items():
        for block in document.blocks:
            text = block.plain_text
            fewest, most = len(text.split()), len(text.encode())
            assert units_for(fewest) <= (block.units or 0) <= units_for(most + 2), name


def test_every_answer_passes_the_rules_of_the_card() -> None:
    for row in rows():
        text = documents()[row["id"]].plain_text
        assert why_unusable(row["messages"][0]["content"], text) is None, row["id"]


def test_no_answer_shares_thirteen_words_in_a_row_with_a_prompt_of_a_test(
    prompts_of_tests: dict[str, str],  # noqa: F811
) -> None:
    tested = frozenset().union(*(grams(text, TEST_GRAM) for text in prompts_of_tests.values()))
    texts = {name: document.plain_text for name, document in documents().items()}
    assert [name for name, text in texts.items() if grams(text, TEST_GRAM) & tested] == []


def test_the_counts_of_what_was_left_out_add_up() -> None:
    counts = json.loads(SCRIPT["OWN_COUNTS"].read_text("utf-8"))
    left_out = sum(counts["rules"].values()) + sum(counts["reader"].values())
    assert counts["sampled"] == left_out + counts["not_read"] + counts["twice"] + len(rows())


def test_the_card_has_the_figures_of_the_files() -> None:
    _, mark, figures = SCRIPT["OWN_CARD"].read_text("utf-8").partition(SCRIPT["MARK"])
    assert mark
    assert figures == SCRIPT["own_figures"]()
    card = SCRIPT["OWN_CARD"].read_text("utf-8")
    for reason in json.loads(SCRIPT["OWN_COUNTS"].read_text("utf-8"))["rules"]:
        assert f"| `{reason}` | " in card.partition(SCRIPT["MARK"])[0]


def test_the_reading_of_the_starter_is_of_its_held_out_answers() -> None:
    held_out = set((ROOT / "corpora" / "starter" / "held_out.txt").read_text("utf-8").split())
    assert set(texts_of(SCRIPT["READING"])) == held_out
    assert texts_of(SCRIPT["READING"]).items() <= texts_of(SCRIPT["SECOND_PASS"]).items()


def test_the_second_reading_is_of_the_same_answers() -> None:
    again = texts_of(SCRIPT["SECOND_READING"])
    assert len(again) >= 90
    assert again.items() <= texts_of(SCRIPT["own_rows"]()).items()


def texts_of(path: Path) -> dict[str, tuple[str, str]]:
    """Return the prompt and the plain text of each record of a file."""
    return {one.id: (one.prompt, one.document.plain_text) for one in read_records(path)}
