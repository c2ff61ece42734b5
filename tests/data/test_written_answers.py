"""The written answers are as their card says: of our instructions, annotated by its rules."""

from __future__ import annotations

import json
import runpy
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from pasta_lm.engines.annotated import read_lines
from pasta_lm.language.check import check
from pasta_lm.language.document import Document, parse
from pasta_lm.language.tags import units_for
from tests.data.test_instructions import grams, prompts_of_tests  # noqa: F401

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "starter.py"))
KEYS = ["id", "messages", "response", "shape", "parts", "source", "licence", "provenance"]
INSTRUCTIONS = ROOT / "corpora" / "instructions"
MIN_BLOCK_WORDS = 5
MAX_TOPIC_WORDS = 3
TEST_GRAM = 13  # words in a row; shorter runs are idioms


@cache
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_lines(SCRIPT["WRITTEN"])]


@cache
def documents() -> dict[str, Document]:
    return {row["id"]: parse(row["response"]) for row in rows()}


def test_every_row_names_an_instruction_of_ours_once_and_in_order() -> None:
    asked = {
        row["id"]: row for row in map(json.loads, read_lines(INSTRUCTIONS / "instructions.jsonl"))
    }
    assert [row["id"] for row in rows()] == [name for name in asked if name in documents()]
    for row in rows():
        assert list(row) == KEYS
        assert row["messages"] == [{"role": "user", "content": asked[row["id"]]["instruction"]}]
        assert (row["shape"], row["parts"]) == tuple(
            asked[row["id"]][key] for key in ("shape", "parts")
        )
        assert row["licence"] == "Apache-2.0"


def test_no_held_out_or_development_instruction_is_answered() -> None:
    for name in ("held_out.txt", "development.txt"):
        assert not documents().keys() & set((INSTRUCTIONS / name).read_text("utf-8").split())


def test_every_answer_is_valid_without_a_warning_but_for_long_blocks() -> None:
    assert {row["id"]: check(row["response"]) for row in rows() if check(row["response"])} == {}


def test_blocks_topics_and_syncs_keep_the_rules_of_the_card() -> None:
    for row in rows():
        blocks = documents()[row["id"]].blocks
        assert len(blocks) != 1, row["id"]
        assert not (row["parts"] == "one" and blocks), row["id"]
        assert not documents()[row["id"]].num_syncs or blocks, row["id"]
        topics = Counter(block.topic.lower() for block in blocks)
        assert max(topics.values(), default=1) == 1, row["id"]
        for block in blocks:
            assert 1 <= len(block.topic.split()) <= MAX_TOPIC_WORDS, row["id"]
            assert len(block.plain_text.split()) >= MIN_BLOCK_WORDS, row["id"]


def test_the_space_before_a_tag_stands_behind_it_and_lengths_are_possible() -> None:
    for name, document in documents().items():
        assert document == document.with_spaces_after_tags(), name
        for block in document.blocks:
            fewest, most = len(block.plain_text.split()), len(block.plain_text.encode())
            assert units_for(min(fewest, most)) <= (block.units or 0) <= units_for(most + 2), name


def test_no_answer_shares_thirteen_words_in_a_row_with_a_prompt_of_a_test(
    prompts_of_tests: dict[str, str],  # noqa: F811
) -> None:
    tested = frozenset().union(*(grams(text, TEST_GRAM) for text in prompts_of_tests.values()))
    texts = {name: document.plain_text for name, document in documents().items()}
    assert [name for name, text in texts.items() if grams(text, TEST_GRAM) & tested] == []


def test_the_card_has_the_figures_of_the_file() -> None:
    _, mark, figures = SCRIPT["WRITTEN_CARD"].read_text("utf-8").partition(SCRIPT["MARK"])
    assert mark
    assert figures == SCRIPT["written_figures"]()
