"""Figures of a judge: by hand, for judges that read nothing, and on AlpacaEval's own judgements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pasta_lab.judge.check import (
    damage_figures,
    judged_pairs,
    preference_figures,
    refusals,
    rows_of,
)
from pasta_lab.judge.pairs import (
    DamageConfig,
    Pair,
    PreferencesConfig,
    damaged_pairs,
    stored_pairs,
)
from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.judge.judge import Verdict, Winner
from tests.learn.judge.scripted_judges import (
    FIRST,
    SECOND,
    RuleJudge,
    always_first,
    longer,
    perfect,
)

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
    judge = RuleJudge(
        lambda one: None if one == gap else FIRST if one.first in originals else SECOND
    )
    judged = judged_pairs(judge, pairs)
    found = damage_figures(judged)
    assert (found["num_missing"], found["overall"]["num_pairs"]) == (1, len(pairs) - 1)
    assert refusals(found, max_missing=0.1) == []
    (said,) = refusals(found, max_missing=0.0)
    assert said == f"1 of {len(pairs)} damaged pairs have no verdict"
    rows = rows_of(judged)
    assert len({row["id"] for row in rows}) == len(rows) == len(pairs) - 1
    mute = damage_figures(judged_pairs(RuleJudge(lambda _: None), pairs))
    assert len(refusals(mute, max_missing=0.1)) == 2


def test_only_planted_damage_and_a_judge_of_its_own_mind_give_headlines(pairs: list[Pair]) -> None:
    found = damage_figures(judged_pairs(perfect({text(n) for n in range(NUM)}), pairs))
    assert refusals(None, max_missing=0.1) == ["no damage was planted"]
    assert refusals(found, max_missing=0.1, is_scripted=True) == ["its replies follow a script"]


def test_the_orders_are_averaged_by_their_log_odds() -> None:
    pair = Pair("1", "dropped", "Why?", "ours", "theirs", 1.0)
    said = {"ours": Verdict(Winner.FIRST, 0.9), "theirs": Verdict(Winner.FIRST, 0.6)}
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
    assert ({one.id for one in found.pairs}, found.num_left_out) == (
        {f"annotated.jsonl/{n}" for n in range(3)},
        0,
    )
    dropped = [one.theirs for one in found.pairs if one.kind == "dropped"]
    assert {len(one.split()) for one in dropped} == {8}
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


# --- stored judgements

# Reference's and model's answers, and the stored preference: 1 is the reference, 2 the model.
STORED = [("aaaa", "bb", 1.1), ("aaaa", "bbb", 1.2), ("aa", "bbbbb", 1.8), ("aa", "bb", 1.5)]


@pytest.fixture
def stored(tmp_path: Path) -> PreferencesConfig:
    rows = [
        {"model": "m", "row": n, "preference": one, "len_1": len(a), "len_2": len(b), "judge": "j"}
        for n, (a, b, one) in enumerate([*STORED, ("lost", "lost", 1.0)])
    ]
    rows[-1]["len_2"] = 99
    outputs = {"reference": 0, "outputs_m": 1}
    for name, column in outputs.items():
        lines = [
            json.dumps({"instruction": f"Q{n}", "output": one[column]}) + "\n"
            for n, one in enumerate([*STORED, ("lost", "lost", 1.0)])
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    judgements = tmp_path / "judgements.jsonl"
    judgements.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PreferencesConfig(
        judgements=str(judgements),
        reference=str(tmp_path / "reference.jsonl"),
        outputs=(str(tmp_path / "outputs_m.jsonl"),),
    )


def test_pairs_of_other_lengths_than_those_judged_are_left_out(stored: PreferencesConfig) -> None:
    found = stored_pairs(stored)
    assert (len(found.pairs), found.num_left_out) == (4, 1)
    by_id = sorted(found.pairs)
    assert [(one.theirs, one.ours, 1 + one.ours_wins) for one in by_id] == STORED


def test_agreement_by_hand(stored: PreferencesConfig) -> None:
    # The longer answer wins in rows 0 to 2, as stored; row 3 is a tie of both.
    found = preference_figures(judged_pairs(longer(), stored_pairs(stored).pairs))
    single = {key: one["mean"] for key, one in found.items() if isinstance(one, dict)}
    assert single == {
        "agreement": 3.5 / 4,
        "longer": 3.5 / 4,
        "over_longer": 0,
        "order_agreement": 1,
        "first_place_share": 0.5,
        "length_bias": 0,
    }
    assert found["kappa"] == 1


def test_a_judge_that_always_names_the_first_agrees_on_half(stored: PreferencesConfig) -> None:
    found = preference_figures(judged_pairs(always_first(), stored_pairs(stored).pairs))
    assert found["agreement"]["mean"] == 0.5
    assert found["length_bias"]["mean"] == -0.5
    assert found["kappa"] is None


def test_a_model_without_judgements_is_named(stored: PreferencesConfig, tmp_path: Path) -> None:
    other = tmp_path / "outputs_other.jsonl"
    other.write_bytes((tmp_path / "outputs_m.jsonl").read_bytes())
    with pytest.raises(InputError, match="no judgements on 'other'") as caught:
        stored_pairs(PreferencesConfig(**_fields(stored) | {"outputs": (str(other),)}))
    assert caught.value.hint == "it has some on m"


def _fields(config: PreferencesConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in type(config).__slots__}


def test_alpaca_eval_s_judgements_fit_its_answers(shared_data: Path) -> None:
    folder = shared_data / "alpaca_eval"
    found = stored_pairs(
        PreferencesConfig(
            judgements=str(folder / "annotations_weighted_gpt4_turbo.jsonl.gz"),
            reference=str(folder / "outputs_gpt4_1106_preview.jsonl.gz"),
            outputs=(str(folder / "outputs_gemma-7b-it.jsonl.gz"),),
            num_pairs=1000,
        )
    )
    assert (len(found.pairs), found.num_left_out) == (805, 0)
    figures = preference_figures(judged_pairs(longer(), found.pairs))
    assert figures["agreement"] == figures["longer"]
    assert figures["over_longer"]["mean"] == 0
