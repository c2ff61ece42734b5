"""The starter data set holds what its card says, and can be finetuned on as the page says."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pasta_lab import corpora
from pasta_lm.engines.scripted import words
from pasta_lm.language.check import check
from pasta_lm.language.document import Document
from pasta_lm.language.document import parse as parse_anew
from tests.cli.conftest import Pasta, pasta  # noqa: F401

ROOT = Path(__file__).parents[3]
CARD = corpora.STARTER / "README.md"
KEYS = ["id", "messages", "response", "source", "domain", "licence", "provenance"]
PASS_KEYS = [key for key in KEYS if key != "domain"]
LEAST_WORDS = 5

NUMBER = r"\d[\d,]*(?:\.\d+)?"
TERM = rf"\(*{NUMBER}\)*"
SUM = re.compile(
    rf"(?<![^\s(*])(?<![+−×÷] )({TERM}(?: [+−×÷] {TERM})+) = \**(−?{NUMBER})(?=(.{{0,9}}))"
)
SIGNS = str.maketrans({"−": "-", "×": "*", "÷": "/", ",": None})


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@cache
def parse(response: str) -> Document:
    """Return a response as a document, each parsed but once."""
    return parse_anew(response)


def spoken(instruction: str) -> str:
    """Return what is left of an instruction when case, signs and white space do not count."""
    return " ".join(re.findall(r"\w+", instruction.casefold()))


ROWS = rows(corpora.ROWS)
SECOND_PASS = rows(corpora.SECOND_PASS)
BOTH = pytest.mark.parametrize("file", [ROWS, SECOND_PASS], ids=["first", "second"])


# --- what stands in it


def test_the_corpus_has_at_least_a_thousand_rows_with_ids_in_order() -> None:
    assert len(ROWS) >= 1000
    assert [row["id"] for row in ROWS] == [f"starter-{n:04}" for n in range(1, len(ROWS) + 1)]


def test_instructions_and_answers_are_unique() -> None:
    instructions = [spoken(row["messages"][0]["content"]) for row in ROWS]
    assert all(instructions)
    assert len(set(instructions)) == len(ROWS)
    assert len({spoken(parse(row["response"]).plain_text) for row in ROWS}) == len(ROWS)


def test_every_row_names_its_source_in_one_spelling() -> None:
    assert all(list(row) == KEYS for row in ROWS)
    assert all(list(row) == PASS_KEYS for row in SECOND_PASS)
    for file in (ROWS, SECOND_PASS):
        assert {len(row["messages"]) for row in file} == {1}
        assert {row["messages"][0]["role"] for row in file} == {"user"}
        assert {row["licence"] for row in file} == {"Apache-2.0"}
        assert len({(row["source"], row["provenance"]) for row in file}) == 1
    assert all("language model" in row["provenance"] for row in (ROWS[0], SECOND_PASS[0]))


@BOTH
def test_every_answer_is_valid_without_a_warning(file: list[dict[str, Any]]) -> None:
    assert {row["id"]: check(row["response"]) for row in file if check(row["response"])} == {}


@BOTH
def test_no_block_is_short_and_no_tags_are_useless(
    file: list[dict[str, Any]],
) -> None:
    for row in file:
        document = parse(row["response"])
        for block in document.blocks:
            assert len(block.plain_text.split()) >= LEAST_WORDS, row["id"]
            text = block.plain_text.removeprefix(" ")
            assert text == text.strip(), row["id"]
        assert document == document.with_spaces_after_tags(), row["id"]
        if document.blocks:
            speedup = corpora.document_speedup(document, lambda text: len(words(text)))
            assert speedup > 1, row["id"]


@BOTH
def test_lengths_follow_the_rule_that_the_card_names(file: list[dict[str, Any]]) -> None:
    for row in file:
        document = parse(row["response"])
        assert document == document.with_lengths(corpora.estimate_tokens), row["id"]


def test_written_out_sums_are_correct() -> None:
    num_sums = 0
    for row in ROWS:
        for terms, value, after in SUM.findall(parse(row["response"]).plain_text):
            if terms.count("(") != terms.count(")") or re.match(r" (million|[+−×÷=])", after):
                continue
            num_decimals = len(value.partition(".")[2])
            found = eval(terms.translate(SIGNS))
            assert abs(found - float(value.translate(SIGNS))) <= 0.5001 * 10**-num_decimals, row
            num_sums += 1
    assert num_sums > 150


def test_no_instruction_is_in_the_other_data_of_the_project(shared_data: Path) -> None:
    path = shared_data / "alpaca_eval" / "alpacaeval_instructions.jsonl"
    theirs = {spoken(row["instruction"]) for row in rows(path)}
    with gzip.open(shared_data / "annotated" / "gemma-7b-it.jsonl.gz", "rt", "utf-8") as file:
        theirs |= {spoken(json.loads(line)["instruction"]) for line in file}
    assert len(theirs) >= 700
    assert not theirs & {spoken(row["messages"][0]["content"]) for row in ROWS}


def test_the_second_pass_annotates_200_of_the_same_texts() -> None:
    first = {row["id"]: row for row in ROWS}
    assert len({row["id"] for row in SECOND_PASS}) == len(SECOND_PASS) == 200
    for row in SECOND_PASS:
        assert row["messages"] == first[row["id"]]["messages"]
        plain_text = parse(row["response"]).plain_text
        assert plain_text == parse(first[row["id"]]["response"]).plain_text


# --- its card, and where it goes


def test_the_card_has_the_figures_of_the_files() -> None:
    _, mark, figures = CARD.read_text("utf-8").partition(corpora.MARK)
    assert mark
    assert figures == corpora.card(corpora.STARTER)


def test_the_card_names_every_row_of_which_the_passes_have_other_numbers_of_tags() -> None:
    prose = CARD.read_text("utf-8").partition(corpora.MARK)[0]
    limits = prose.partition("## Limits\n")[2]
    first = {row["id"]: parse(row["response"]) for row in ROWS}
    differ = set()
    for row in SECOND_PASS:
        one, other = first[row["id"]], parse(row["response"])
        if (len(one.blocks), one.num_syncs) != (len(other.blocks), other.num_syncs):
            differ.add(row["id"])
    assert set(re.findall(r"`(starter-\d{4})`", limits)) == differ


def test_the_corpus_is_in_the_source_archive_and_not_in_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"] == {"packages": ["src/pasta_lm"]}
    assert "/corpora" in build["targets"]["sdist"]["include"]
    assert not list((ROOT / "src").rglob("*starter*.jsonl"))
