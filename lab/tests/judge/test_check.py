"""Figures of a judge: by hand, and for judges that read nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pasta_lab.judge.check import damage_figures, judged_pairs, refusals, rows_of
from pasta_lab.judge.pairs import DamageConfig, Pair, damaged_pairs
from pasta_lm.errors import InputError, UsageError
from tests.learn.judge.endpoint import FIRST, SECOND, RuleJudge, always_first, longer, perfect

NUM = 60


def text(number: int) -> str:
    return "\n\n".join(f"Paragraph {part} of answer {number} says this." for part in range(4))


@pytest.fixture
def answers(tmp_path: Path) -> str:
    file = tmp_path / "answers.jsonl"
    rows = [{"instruction": f"Write {n}.", "output": text(n)} for n in range(NUM)]
    rows.append({"instruction": "Say it.", "output": "One paragraph has nothing to swap."})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def pairs(answers: str) -> list[Pair]:
    return damaged_pairs(DamageConfig(answers=(answers,), num_answers=NUM)).pairs


def means(figures: dict[str, Any], key: str = "accuracy") -> dict[str, float]:
    return {kind: one[key]["mean"] for kind, one in figures["kinds"].items()}


KINDS = ("dropped", "doubled", "swapped", "cut")


def test_a_perfect_judge_is_always_right(pairs: list[Pair]) -> None:
    judge = perfect({text(n) for n in range(NUM)})
    found = damage_figures(judged_pairs(judge, pairs))
    assert means(found) == dict.fromkeys(KINDS, 1.0)
    assert found["overall"]["num_pairs"] == 4 * NUM
    assert found["overall"]["order_agreement"]["mean"] == 1
    assert found["overall"]["first_place_share"]["mean"] == 0.5
    assert refusals(found, max_missing=0.0) == []
    assert len(judge.asked) == 8 * NUM


def test_a_judge_that_always_names_the_first_is_right_on_half(pairs: list[Pair]) -> None:
    found = damage_figures(judged_pairs(always_first(), pairs))
    assert means(found) == means(found, "in_one_order") == dict.fromkeys(KINDS, 0.5)
    assert found["overall"]["order_agreement"]["mean"] == 0
    assert found["overall"]["first_place_share"]["mean"] == 0.8
    assert refusals(found, max_missing=0.0) == ["right on 0.500 of planted damage, below 0.9"]


def test_a_judge_of_length_is_found_out_by_the_kinds(pairs: list[Pair]) -> None:
    found = means(damage_figures(judged_pairs(longer(), pairs)))
    assert (found["dropped"], found["doubled"], found["cut"]) == (1, 0, 1)


def test_a_pair_without_a_verdict_in_one_order_is_left_out(pairs: list[Pair]) -> None:
    originals = {text(n) for n in range(NUM)}
    gap = pairs[0].orders[1]
    rule = {True: FIRST, False: SECOND}
    judge = RuleJudge(lambda one: None if one == gap else rule[one.first in originals])
    judged = judged_pairs(judge, pairs)
    found = damage_figures(judged)
    assert (found["num_missing"], found["overall"]["num_pairs"]) == (1, len(pairs) - 1)
    assert refusals(found, max_missing=0.1) == []
    assert refusals(found, max_missing=0) == [f"1 of {len(pairs)} damaged pairs have no verdict"]
    rows = rows_of(judged)
    assert len({row["id"] for row in rows}) == len(rows) == len(pairs) - 1
    mute = damage_figures(judged_pairs(RuleJudge(lambda _: None), pairs))
    assert len(refusals(mute, max_missing=0.1)) == 2


def test_pairs_of_one_prompt_are_drawn_together_also_from_two_files() -> None:
    answers = {"a/1": ("good", "bad"), "b/1": ("bad", "good")}
    pairs = [Pair(name, "cut", "Why?", *both) for name, both in answers.items()]
    found = damage_figures(judged_pairs(perfect({"good"}), pairs))["overall"]
    assert found["accuracy"] == {"mean": 0.5, "low": 0.5, "high": 0.5}


def test_the_orders_are_averaged_by_their_log_odds() -> None:
    pair = Pair("1", "dropped", "Why?", "ours", "theirs")
    said = {"ours": 0.9, "theirs": 0.6}
    (found,) = judged_pairs(RuleJudge(lambda one: said[one.first]), [pair])
    assert found is not None
    # The odds 9 and 2/3 have the geometric mean 6 ** 0.5.
    assert found.ours_wins == pytest.approx(6**0.5 / (1 + 6**0.5))
    assert (found.is_right, found.is_right_in_one_order) == (1, 0.5)


def test_annotated_answers_are_damaged_by_their_blocks(tmp_path: Path) -> None:
    file = tmp_path / "annotated.jsonl"
    block = '<promise topic="{0}" tokens="6"/><async> The {0} is good for your health.</async>'
    rows = [
        {"id": str(n), "prompt": f"Q{n}", "response": f"Two:{block.format('fig')}{block.format(n)}"}
        for n in range(3)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = damaged_pairs(DamageConfig(answers=(str(file),)))
    assert {one.id for one in found.pairs} == {f"annotated.jsonl/{n}" for n in range(3)}
    assert found.num_left_out == 0
    assert {len(one.theirs.split()) for one in found.pairs if one.kind == "dropped"} == {8}
    assert not any("<" in one.ours + one.theirs for one in found.pairs)


def test_the_same_answers_are_drawn_by_the_same_seed(answers: str) -> None:
    def drawn(seed: int) -> list[Pair]:
        return damaged_pairs(DamageConfig(answers=(answers,), num_answers=5, seed=seed)).pairs

    assert drawn(0) == drawn(0) != drawn(1)
    assert len({one.id for one in drawn(0)}) == 5
    assert damaged_pairs(DamageConfig(answers=(answers,))).num_left_out == 1


def test_answers_of_one_part_cannot_be_damaged(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"instruction": "Say it.", "output": "No."}) + "\n")
    with pytest.raises(InputError, match="no answer can be damaged"):
        damaged_pairs(DamageConfig(answers=(str(file),)))
    with pytest.raises(UsageError, match="names no file"):
        DamageConfig(answers=())
