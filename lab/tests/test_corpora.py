"""The shipped corpora are as their cards say, and hold no prompt that measures a model."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pasta_lab import corpora
from pasta_lab.corpora import INSTRUCTIONS, OWN, ROWS, SECOND_PASS, STARTER, WRITTEN
from pasta_lm.journal import read_lines
from pasta_lm.language.check import check
from pasta_lm.language.document import Document, parse
from pasta_lm.language.tags import units_for
from pasta_lm.learn.annotate.filters import examine, speedup
from pasta_lm.learn.annotate.own_answers import why_unusable
from pasta_lm.learn.data.annotated import read_ids

ROOT = Path(__file__).parents[2]
KEYS = ["id", "messages", "response", "shape", "parts", "source", "licence", "provenance"]
ANNOTATED = {
    "starter": ROWS,
    "second_pass": SECOND_PASS,
    "own": corpora.OWN_ROWS,
    "written": corpora.WRITTEN_ROWS,
}
MIN_WORDS, MAX_TOPIC_WORDS = 5, 3  # of a block and of its topic
MAX_SHARED = 0.8  # of the word 5-grams of the shorter of two instructions
INSTRUCTION_GRAM, ANSWER_GRAM = 8, 13  # words in a row; shorter runs are idioms

annotated = pytest.mark.parametrize("corpus", ANNOTATED)
answering = pytest.mark.parametrize("corpus", ["own", "written"])


@cache
def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_lines(path)]


@cache
def documents(corpus: str) -> dict[str, Document]:
    return {row["id"]: parse(row["response"]) for row in rows(ANNOTATED[corpus])}


@cache
def instructions() -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in rows(INSTRUCTIONS / "instructions.jsonl")}


def prompts(corpus: str) -> list[str]:
    return [row["messages"][0]["content"] for row in rows(ANNOTATED[corpus])]


def words_of(text: str) -> list[str]:
    """Return the words in lower case without punctuation."""
    return re.sub(r"[^\w\s]", "", text.lower()).split()


def grams(text: str, length: int) -> frozenset[tuple[str, ...]]:
    found = words_of(text)
    return frozenset(zip(*(found[start:] for start in range(length)), strict=False))


@pytest.fixture(scope="module")
def measured_prompts(shared_data: Path) -> list[str]:
    """Return the prompts of AlpacaEval and of IFEval."""
    alpaca = shared_data / "alpaca_eval" / "alpacaeval_instructions.jsonl"
    ifeval = shared_data / "ifeval" / "prompts.jsonl"
    return [row["instruction"] for row in rows(alpaca)] + [row["prompt"] for row in rows(ifeval)]


# --- annotated answers


@annotated
def test_every_answer_is_valid_without_a_warning(corpus: str) -> None:
    found = {row["id"]: check(row["response"]) for row in rows(ANNOTATED[corpus])}
    assert {name: problems for name, problems in found.items() if problems} == {}


@annotated
def test_blocks_are_long_enough_and_make_the_answer_faster(corpus: str) -> None:
    for name, document in documents(corpus).items():
        assert document == document.with_spaces_after_tags(), name
        for block in document.blocks:
            assert len(block.plain_text.split()) >= MIN_WORDS, name
            assert 1 <= len(block.topic.split()) <= MAX_TOPIC_WORDS, name
        is_fast = speedup(document) > 1
        assert is_fast or not document.blocks or corpus == "written", name


@pytest.mark.parametrize("corpus", ["starter", "second_pass"])
def test_lengths_of_the_starter_follow_the_rule_of_its_card(corpus: str) -> None:
    for name, document in documents(corpus).items():
        assert document == document.with_lengths(lambda text: round(1.3 * len(text.split()))), name


@answering
def test_lengths_of_answers_are_possible_token_counts(corpus: str) -> None:
    for name, document in documents(corpus).items():
        for block in document.blocks:  # from a token for each word to one for each byte
            fewest, most = len(block.plain_text.split()), len(block.plain_text.encode())
            assert units_for(fewest) <= (block.units or 0) <= units_for(most + 2), name


@answering
def test_every_row_answers_an_instruction_that_is_not_held_out(corpus: str) -> None:
    ids = [row["id"] for row in rows(ANNOTATED[corpus])]
    assert ids == [name for name in instructions() if name in documents(corpus)]
    assert not {*ids} & {*read_ids(INSTRUCTIONS / "held_out.txt")}
    for row in rows(ANNOTATED[corpus]):
        asked = instructions()[row["id"]]
        assert list(row) == KEYS
        assert row["messages"] == [{"role": "user", "content": asked["instruction"]}]
        assert (row["shape"], row["parts"]) == (asked["shape"], asked["parts"])


def test_own_answers_pass_the_filters_and_the_rules_of_their_card() -> None:
    for row in rows(ANNOTATED["own"]):
        document = documents("own")[row["id"]]
        form = document.annotator_form()
        assert examine(form, document.plain_text) == parse(form, "annotator"), row["id"]
        assert why_unusable(row["messages"][0]["content"], document.plain_text) is None, row["id"]


def test_written_answers_to_one_thing_never_fork() -> None:
    for row in rows(ANNOTATED["written"]):
        document = documents("written")[row["id"]]
        assert len(document.blocks) != 1, row["id"]
        assert not (row["parts"] == "one" and document.blocks), row["id"]


@pytest.mark.parametrize(
    ("second", "first", "num"),
    [
        (SECOND_PASS, ROWS, 200),
        (OWN / "starter_reading.jsonl", ROWS, 100),
        (OWN / "second_reading.jsonl", corpora.OWN_ROWS, 94),
    ],
    ids=["second pass", "starter reading", "second reading"],
)
def test_a_second_annotation_is_of_the_same_texts(second: Path, first: Path, num: int) -> None:
    texts = {row["id"]: parse(row["response"]).plain_text for row in rows(first)}
    again = {row["id"]: parse(row["response"]).plain_text for row in rows(second)}
    assert again.items() <= texts.items()
    assert len(again) == num


# --- prompts


def test_ids_and_instructions_are_unique() -> None:
    for texts in (prompts("starter"), [row["instruction"] for row in instructions().values()]):
        assert len({" ".join(words_of(text)) for text in texts}) == len(texts)
    assert [row["id"] for row in rows(ROWS)] == [f"starter-{n:04}" for n in range(1, 1041)]
    assert list(instructions()) == sorted(instructions())


def test_no_two_instructions_share_most_of_their_word_sequences() -> None:
    every = {name: grams(row["instruction"], 5) for name, row in instructions().items()}
    where: dict[tuple[str, ...], set[str]] = {}
    for name, found in every.items():
        for gram in found:
            where.setdefault(gram, set()).add(name)
    for name, own in every.items():
        hits = Counter(other for gram in own for other in where[gram] if other != name)
        for other, shared in hits.items():
            assert shared <= MAX_SHARED * min(len(own), len(every[other])), (name, other)


def test_no_prompt_is_one_that_measures_a_model(
    measured_prompts: list[str], shared_data: Path
) -> None:
    with gzip.open(shared_data / "annotated" / "gemma-7b-it.jsonl.gz", "rt", "utf-8") as file:
        asked = measured_prompts + [json.loads(line)["instruction"] for line in file]
    measured = {" ".join(words_of(text)) for text in asked}
    ours = [row["instruction"] for row in instructions().values()]
    assert not measured & {" ".join(words_of(text)) for text in (*ours, *prompts("starter"))}
    shared = frozenset().union(*(grams(text, INSTRUCTION_GRAM) for text in measured_prompts))
    assert [text for text in ours if grams(text, INSTRUCTION_GRAM) & shared] == []


@answering
def test_no_answer_shares_words_in_a_row_with_a_measured_prompt(
    corpus: str, measured_prompts: list[str]
) -> None:
    shared = frozenset().union(*(grams(text, ANSWER_GRAM) for text in measured_prompts))
    for name, document in documents(corpus).items():
        assert not grams(document.plain_text, ANSWER_GRAM) & shared, name


# --- cards and held-out ids


@pytest.mark.parametrize("folder", [STARTER, OWN, WRITTEN], ids=lambda path: path.name)
def test_a_card_has_the_figures_of_its_files(folder: Path) -> None:
    _, mark, figures = (folder / "README.md").read_text("utf-8").partition(corpora.MARK)
    assert mark
    assert figures == corpora.card(folder)


def test_the_counts_of_answers_left_out_add_up() -> None:
    counts = json.loads((OWN / "own_answers.counts.json").read_text("utf-8"))
    left_out = sum((*counts["rules"].values(), *counts["reader"].values()))
    kept = len(rows(ANNOTATED["own"]))
    assert counts["sampled"] == left_out + counts["not_read"] + counts["twice"] + kept


def test_held_out_ids_are_those_that_the_seed_draws() -> None:
    assert read_ids(STARTER / "held_out.txt") == corpora.held_out_starter()
    assert read_ids(INSTRUCTIONS / "held_out.txt") == corpora.held_out_instructions()
    ids = [f"row-{n}" for n in range(50)]
    assert corpora.first_by_hash(ids[::-1], 10) == corpora.first_by_hash(ids, 10)


def test_the_corpora_are_in_the_source_archive_and_not_in_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["packages"] == ["src/pasta_lm"]
    assert "/corpora" in build["targets"]["sdist"]["include"]
