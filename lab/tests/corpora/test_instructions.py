"""The instructions are as their card says, differ from each other, and hold no test prompt."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "corpora" / "instructions"
STARTER = ROOT / "corpora" / "starter" / "starter.jsonl"

PARTS = ["one", "several", "between"]
LEAST_ROWS = 4000
LEAST_SHAPES = 30
ROWS_IN_A_SHAPE = 30
SHARES = (0.28, 0.40)
SHORTEST, LONGEST = 3, 150  # words

SHORT = 8  # words; a shorter instruction clashes with a test prompt only if it is equal to it
MOST_SHARED = 0.8  # of the word 5-grams of the shorter of two instructions
MOST_CONTAINED = 0.5  # of an instruction's word 5-grams in one prompt of a test

# Where ids are written down elsewhere (answers, splits), they must go on naming the same row.
PINNED = {
    "instr-0003": "What do these Japanese words mean: wabi-sabi, ikigai, tsundoku, komorebi?",
    "instr-1503": "six ways to make a small room look bigger",
    "instr-3133": "Five humanitarians and what each achieved.",
    "instr-4833": "What's the markdown for a table with a header and no rows?",
}

Grams = frozenset[tuple[str, ...]]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@cache
def rows() -> list[dict[str, Any]]:
    return rows_of(FOLDER / "instructions.jsonl")


def instructions() -> list[str]:
    return [row["instruction"] for row in rows()]


def words_of(text: str) -> list[str]:
    """Return the words in lower case without punctuation."""
    return re.sub(r"[^\w\s]", "", text.lower()).split()


def normalised(text: str) -> str:
    return " ".join(words_of(text))


def grams(text: str, length: int) -> Grams:
    words = words_of(text)
    return frozenset(zip(*(words[start:] for start in range(length)), strict=False))


def places(texts: dict[str, Grams]) -> dict[Any, set[str]]:
    where: dict[Any, set[str]] = {}
    for name, found in texts.items():
        for gram in found:
            where.setdefault(gram, set()).add(name)
    return where


@pytest.fixture(scope="module")
def prompts_of_tests(shared_data: Path) -> dict[str, str]:
    """Return the prompts of AlpacaEval and of IFEval by a name."""
    files = {
        "AlpacaEval": (
            shared_data / "alpaca_eval" / "alpacaeval_instructions.jsonl",
            "instruction",
        ),
        "IFEval": (shared_data / "ifeval" / "prompts.jsonl", "prompt"),
    }
    for path, _ in files.values():
        if not path.is_file():
            pytest.skip(f"needs {path}")
    return {
        f"{name} {number}": row[key]
        for name, (path, key) in files.items()
        for number, row in enumerate(rows_of(path), 1)
    }


class TestTheFileHoldsWhatTheCardSays:
    def test_every_row_has_the_four_fields_and_nothing_else(self) -> None:
        for row in rows():
            assert list(row) == ["id", "instruction", "shape", "parts"]
            assert all(isinstance(value, str) for value in row.values())
            assert row["parts"] in PARTS
            assert row["instruction"] == row["instruction"].strip()
            assert SHORTEST <= len(row["instruction"].split()) <= LONGEST, row["id"]

    def test_there_are_enough_of_them(self) -> None:
        assert len(rows()) >= LEAST_ROWS

    def test_ids_are_unique_and_ascend(self) -> None:
        ids = [row["id"] for row in rows()]
        assert all(re.fullmatch(r"instr-\d{4}", name) for name in ids)
        assert ids == sorted(set(ids))

    def test_ids_go_on_naming_the_same_instruction(self) -> None:
        by_id = {row["id"]: row["instruction"] for row in rows()}
        assert {name: by_id[name] for name in PINNED} == PINNED

    @pytest.mark.parametrize("parts", PARTS)
    def test_about_a_third_asks_for_each_kind_of_parts(self, parts: str) -> None:
        share = sum(row["parts"] == parts for row in rows()) / len(rows())
        assert SHARES[0] <= share <= SHARES[1]

    def test_many_shapes_have_many_rows(self) -> None:
        counts = Counter(row["shape"] for row in rows())
        assert len(counts) >= LEAST_SHAPES
        assert all(count >= ROWS_IN_A_SHAPE for count in counts.values()), counts

    def test_the_card_counts_every_shape_as_the_file_does(self) -> None:
        found = Counter((row["shape"], row["parts"]) for row in rows())
        shapes = {shape for shape, _ in found}
        card = (FOLDER / "README.md").read_text("utf-8")
        table = re.findall(
            r"^\| `([\w-]+)` \| .+? \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", card, re.M
        )
        assert {shape for shape, *_ in table} == shapes
        for shape, *counts in table:
            expected = [found[shape, parts] for parts in PARTS]
            assert [int(count) for count in counts] == [*expected, sum(expected)], shape


class TestNoTwoAreAlike:
    def test_no_two_are_equal_but_for_case_and_punctuation(self) -> None:
        twice = [text for text, n in Counter(map(normalised, instructions())).items() if n > 1]
        assert twice == []

    def test_no_two_share_most_of_their_five_word_sequences(self) -> None:
        every = {row["id"]: grams(row["instruction"], 5) for row in rows()}
        where = places(every)
        for name, own in every.items():
            hits = Counter(other for gram in own for other in where[gram] if other != name)
            for other, shared in hits.items():
                assert shared <= MOST_SHARED * min(len(own), len(every[other])), (name, other)

    def test_none_is_a_prompt_of_the_starter(self) -> None:
        starter = {normalised(row["messages"][0]["content"]) for row in rows_of(STARTER)}
        assert [text for text in instructions() if normalised(text) in starter] == []


class TestNoneIsAPromptOfATest:
    def test_none_is_equal_but_for_case_and_punctuation(
        self, prompts_of_tests: dict[str, str]
    ) -> None:
        tested = {normalised(text) for text in prompts_of_tests.values()}
        assert [text for text in instructions() if normalised(text) in tested] == []

    def test_none_shares_eight_words_in_a_row(self, prompts_of_tests: dict[str, str]) -> None:
        tested = frozenset().union(*(grams(text, 8) for text in prompts_of_tests.values()))
        assert [text for text in instructions() if grams(text, 8) & tested] == []

    def test_half_of_none_lies_in_one_of_them(self, prompts_of_tests: dict[str, str]) -> None:
        where = places({name: grams(text, 5) for name, text in prompts_of_tests.items()})
        for text in instructions():
            own = grams(text, 5)
            if len(words_of(text)) < SHORT:
                continue
            hits = Counter(name for gram in own for name in where.get(gram, ()))
            assert max(hits.values(), default=0) <= MOST_CONTAINED * len(own), text
