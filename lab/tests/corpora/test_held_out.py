"""The held-out ids are those that the seed draws, and are rows of their corpora."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pasta_lab import corpora
from pasta_lm.journal import read_lines

ROOT = Path(__file__).parents[3]
STARTER = ROOT / "corpora" / "starter"
INSTRUCTIONS = ROOT / "corpora" / "instructions"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_lines(path)]


def ids_of(folder: Path) -> list[str]:
    return (folder / "held_out.txt").read_text("utf-8").split()


@pytest.mark.parametrize("name", ["starter", "instructions"])
def test_the_file_holds_what_the_seed_draws(name: str) -> None:
    assert ids_of(ROOT / "corpora" / name) == getattr(corpora, f"held_out_{name}")()


def test_100_starter_rows_are_held_out_and_each_was_annotated_twice() -> None:
    ids = ids_of(STARTER)
    assert len(set(ids)) == len(ids) == 100
    for file in ("starter.jsonl", "second_pass.jsonl"):
        assert set(ids) <= {row["id"] for row in rows_of(STARTER / file)}


def test_100_instructions_of_one_part_and_100_of_several_are_held_out() -> None:
    parts = {row["id"]: row["parts"] for row in rows_of(INSTRUCTIONS / "instructions.jsonl")}
    assert Counter(parts[name] for name in ids_of(INSTRUCTIONS)) == {"one": 100, "several": 100}


def test_the_choice_depends_neither_on_order_nor_on_deleted_rows() -> None:
    ids = [f"row-{n}" for n in range(50)]
    chosen = corpora.first_by_hash(ids, 10)
    assert corpora.first_by_hash(ids[::-1], 10) == chosen
    deleted = next(name for name in ids if name not in chosen)
    assert corpora.first_by_hash([name for name in ids if name != deleted], 10) == chosen
