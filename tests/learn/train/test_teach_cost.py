"""What teaching a model costs, and what goes first where a budget is too small."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.learn.train.teach_config import LearningConfig, StageTwoConfig, TeachConfig
from pasta_lm.learn.train.teach_cost import (
    Amounts,
    Machine,
    Rates,
    Shape,
    assumed_rates,
    disk,
    fit,
    hours,
    memory,
)
from pasta_lm.learn.train.teach_run import STEPS, TeachRun
from pasta_lm.recipe import read_recipe

ROOT = Path(__file__).parents[3]
SMOLLM2 = Shape(134_515_008, 30, 576, 1536, 49_152, 384, 10_176)
RATES = Rates(decode_tokens_per_s=100.0, train_s_per_token=25 / 2048)
CONFIG = TeachConfig()
AMOUNTS = Amounts.of(CONFIG)


def total(amounts: Amounts) -> float:
    return sum(hours(amounts, CONFIG, RATES).values())


def test_stage_one_takes_what_the_measured_run_took() -> None:
    # 110 steps of 2,048 tokens at 25 s a step, on one core of an EPYC (runs/smollm2).
    found = hours(AMOUNTS, CONFIG, RATES)
    assert AMOUNTS.passes == 110
    assert found["baseline"] == found["pasta"] == pytest.approx(110 * 25 / 3600, rel=0.02)


def test_memory_is_near_what_the_measured_run_took() -> None:
    # Adapters of rank 64 in float32: 4.9 GB resident (runs/smollm2/continue.toml).
    config = replace(CONFIG, train=LearningConfig(weights="adapter"))
    assert memory(SMOLLM2, config, 16, 4)["training"] == pytest.approx(4.9e9, rel=0.25)


def test_two_engines_of_two_layouts_each_are_what_the_measures_hold() -> None:
    one, two = (memory(SMOLLM2, CONFIG, 16, 4, layouts)["measures"] for layouts in (1, 2))
    assert two - one == 2 * 4 * SMOLLM2.num_weights


def test_leaner_amounts_cost_less_each_time() -> None:
    costs = [total(one) for one in AMOUNTS.leaner()]
    assert all(first >= second for first, second in pairwise(costs))
    assert costs[-1] < costs[0] / 5


def test_without_a_budget_and_with_a_large_one_nothing_is_cut() -> None:
    for budget in (None, total(AMOUNTS)):
        assert fit(AMOUNTS, budget, total) == (AMOUNTS, [])


@pytest.mark.parametrize("share", [0.9, 0.5, 0.3, 0.1])
def test_a_budget_is_kept_and_what_was_cut_is_named(share: float) -> None:
    budget = share * total(AMOUNTS)
    found, cuts = fit(AMOUNTS, budget, total)
    assert total(found) <= budget
    assert cuts
    for cut in cuts:
        name, _, change = cut.partition(" ")
        assert name in {
            "answers",
            "passes",
            "rounds",
            "prompts",
            "development",
            "steps",
            "measured",
        }
        old, new = map(int, change.split(" -> "))
        assert new < old


def test_what_teaches_goes_last() -> None:
    for found in AMOUNTS.leaner():
        if found.passes < AMOUNTS.passes:
            assert found.rounds == 0
        if found.rounds < AMOUNTS.rounds:
            assert found.num_answers <= AMOUNTS.num_answers / 4
    assert found.passes >= 2


def test_a_budget_that_nothing_fits_gives_the_least() -> None:
    *_, least = AMOUNTS.leaner()
    assert fit(AMOUNTS, 0.0, total)[0] == least


@pytest.mark.parametrize(
    ("weights", "operations"), [("all", 6), ("adapter", 4)]
)  # fmt: skip
def test_assumed_rates_follow_from_operations_and_bandwidth(weights: Any, operations: int) -> None:
    machine = Machine("one", flops=1e12, bytes_per_s=1e10, launch_s=0.0)
    config = replace(CONFIG, train=LearningConfig(weights=weights))
    found = assumed_rates(SMOLLM2, machine, config, in_flight=4)
    assert found.train_s_per_token == pytest.approx(operations * SMOLLM2.num_weights / 1e12)
    assert found.decode_tokens_per_s == pytest.approx(4 * 1e10 / (2 * SMOLLM2.num_weights))
    assert not found.is_measured


def test_a_small_models_decoding_is_bound_by_what_starting_operations_takes() -> None:
    slow, fast = (Machine("one", 1e15, 1e13, launch_s) for launch_s in (1e-4, 0.0))
    rates = [assumed_rates(SMOLLM2, one, CONFIG, 64) for one in (slow, fast)]
    assert rates[0].decode_tokens_per_s < rates[1].decode_tokens_per_s / 10


def test_stage_two_holds_two_models_and_whole_ones_on_disk() -> None:
    needed = memory(SMOLLM2, CONFIG, 1, 2)
    assert needed["preference"] > 2 * 2 * SMOLLM2.num_weights
    none = replace(CONFIG, preference=StageTwoConfig(rounds=0))
    more = disk(SMOLLM2, CONFIG, AMOUNTS, 2) - disk(SMOLLM2, none, Amounts.of(none), 2)
    assert more >= 2 * 2 * 2 * SMOLLM2.num_weights


@pytest.mark.parametrize(
    "path", sorted((ROOT / "runs" / "teach").glob("*.toml")), ids=lambda p: p.stem
)
def test_recipes_of_hub_models_can_be_read_and_name_their_command(path: Path) -> None:
    read_recipe(path, TeachConfig)
    head = path.read_text("utf-8").splitlines()[0]
    assert head.startswith("# pasta teach ")
    assert head.endswith(f"--recipe runs/teach/{path.name}")


# --- amounts of a run


def run(folder: Path, budget_hours: float | None) -> TeachRun:
    found = TeachRun(folder, "model", CONFIG, budget_hours)
    plan = {"id": "plan", "num_weights": 10, "rates": asdict(RATES), "amounts": [*AMOUNTS]}
    found.journal.append([plan])
    return found


def go(teaching: TeachRun, wall_s: float, **result: Any) -> list[Amounts]:
    amounts = []
    for step in STEPS:
        amounts.append(teaching.amounts(step))
        teaching.finish(step, wall_s, **result)
    return amounts


def test_without_a_budget_the_amounts_are_those_of_the_plan(tmp_path: Path) -> None:
    found = run(tmp_path, None)
    assert {*go(found, 1e6)} == {AMOUNTS}
    assert not found.cuts


def test_steps_that_took_longer_than_estimated_make_the_later_ones_smaller(tmp_path: Path) -> None:
    found = run(tmp_path, total(AMOUNTS) + 0.01)
    first, *_, last = go(found, 3600.0)
    assert first == AMOUNTS
    assert last.num_measured < AMOUNTS.num_measured
    assert found.cuts


def test_both_models_of_stage_one_have_the_same_passes_whatever_is_left(tmp_path: Path) -> None:
    amounts = go(run(tmp_path, total(AMOUNTS) / 2), 3600.0)
    by_step = dict(zip(STEPS, amounts, strict=True))
    assert by_step["baseline"].passes == by_step["pasta"].passes


def test_amounts_do_not_change_once_a_step_has_begun(tmp_path: Path) -> None:
    found = run(tmp_path, total(AMOUNTS))
    before = found.amounts("answers")
    again = TeachRun(tmp_path, "model", CONFIG, 0.001)
    assert again.amounts("answers") == before
    again.finish("answers", 1.0)
    assert again.amounts("annotated").passes < before.passes


def test_rates_are_those_of_finished_steps(tmp_path: Path) -> None:
    found = run(tmp_path, None)
    found.amounts("answers")
    found.finish("answers", 50.0, num_tokens=1000, is_whole=True)
    assert found.rates().decode_tokens_per_s == 20.0
    found.amounts("annotated")
    found.amounts("baseline")
    found.finish("baseline", 220.0, is_whole=True)
    assert found.rates().train_s_per_token == 220 / (110 * 2048)


def test_a_step_that_was_interrupted_says_nothing_of_the_rates(tmp_path: Path) -> None:
    found = run(tmp_path, None)
    found.amounts("answers")
    found.finish("answers", 50.0, num_tokens=1000, is_whole=False)
    assert found.rates() == RATES
