"""The router of Skeleton-of-Thought: its training, its file, and the strategy that uses it."""

from __future__ import annotations

import json
from itertools import islice
from math import exp, log
from pathlib import Path

import pytest

from pasta_lab.tasks import mixture
from pasta_lab.tasks.baselines import SOT_ANNOTATORS
from pasta_lm.errors import InputError, ModelError, UsageError
from pasta_lm.learn.train.router import MIN_PROMPTS, fit
from pasta_lm.strategies import model as models
from pasta_lm.strategies.router import (
    FILE_NAME,
    LearnedRouter,
    features,
    read_router,
    write_router,
)
from tests.measure.tiny import tiny

ROWS = [("Three tips", True)] * 5 + [("Add on, tips", False)] * 8


def test_features_are_words_and_pairs_of_neighbouring_words() -> None:
    assert features("On, and on: Über 2") == {
        *("on", "and", "über", "2"),
        *("on and", "and on", "on über", "über 2"),
    }
    assert features("?!") == set()


def loss(router: LearnedRouter, rows: list[tuple[str, bool]]) -> float:
    return sum(
        log(1 + exp(-router.log_odds(prompt) * (1 if should else -1))) for prompt, should in rows
    )


def test_both_classes_weigh_the_same_however_many_rows_each_has() -> None:
    # The word is in all rows, so it tells nothing: even odds, although 5 of 9 labels are True.
    router = fit([("tips", True)] * 5 + [("tips", False)] * 4)
    assert router.log_odds("tips") == pytest.approx(0, abs=1e-4)


def test_the_fit_is_the_minimum_of_the_regularised_loss() -> None:
    # The derivative by a weight: weight itself + sum of row weight * (probability - label) = 0.
    router, num_rows = fit(ROWS), len(ROWS)
    for word, weight in router.weights.items():
        gradient = weight
        for prompt, label in ROWS:
            row_weight = num_rows / 2 / sum(one is label for _, one in ROWS)
            error = 1 / (1 + exp(-router.log_odds(prompt))) - label
            gradient += row_weight * error * (word in features(prompt))
        assert gradient == pytest.approx(0, abs=1e-3)


def test_it_learns_to_separate_prompts_and_the_same_rows_give_the_same_router() -> None:
    router = fit(ROWS)
    assert (router("three tips"), router("three birds"), router("add on")) == (True, True, False)
    assert router.log_odds("birds sing") == router.bias  # it has never seen them
    assert loss(router, ROWS) < loss(LearnedRouter(0.0, {}), ROWS) / 2
    assert fit(ROWS) == router


def test_words_of_few_prompts_get_no_weight() -> None:
    found = fit([*ROWS, *[("rare", True)] * (MIN_PROMPTS - 1)]).weights
    assert "rare" not in found
    assert "three" in found


@pytest.mark.parametrize("rows", [[], ROWS[:2], ROWS[-2:]])
def test_prompts_with_one_label_are_refused(rows: list[tuple[str, bool]]) -> None:
    with pytest.raises(InputError, match="learns nothing"):
        fit(rows)


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="no word occurs in 5 of 2 prompts"):
        fit([("three tips", True), ("add on", False)])


def test_a_router_is_stored_beside_its_model_and_read_again(tmp_path: Path) -> None:
    assert read_router(tmp_path) is None
    router = fit(ROWS)
    file = write_router(router, tmp_path)
    assert file == tmp_path / FILE_NAME
    again = read_router(tmp_path)
    assert again is not None
    assert again.weights == pytest.approx(dict(router.weights), abs=1e-4)
    assert again.log_odds("three tips") == pytest.approx(router.log_odds("three tips"), abs=1e-3)
    with pytest.raises(InputError, match="cannot be written"):
        write_router(router, tmp_path / "absent")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "bias": 0, "weights": {}}',
        '{"version": 1, "bias": "much", "weights": {}}',
        '{"version": 1, "bias": 0, "weights": [1]}',
        '{"version": 1, "bias": 0, "weights": {"a": null}}',
    ],
)
def test_a_file_that_is_not_a_router_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ModelError, match=r"router\.json is no router") as refused:
        read_router(tmp_path)
    assert "pasta train router" in (refused.value.hint or "")


def test_on_the_tasks_it_separates_prompts_that_it_was_not_trained_on() -> None:
    def rows(split: str, name: str, num: int) -> list[tuple[str, bool]]:
        return [
            (task.prompt, len(SOT_ANNOTATORS[name](task, 0).blocks) > 1)
            for task in islice(mixture(split, 3), num)
        ]

    seen, router = rows("dev", "sot_gold", 200), fit(rows("train", "sot_noisy", 2000))
    num_right = sum(router(prompt) == should for prompt, should in seen)
    largest = max(sum(should for _, should in seen), sum(not should for _, should in seen))
    assert num_right >= largest + 10  # better than one answer to all


def test_a_routed_prompt_is_answered_by_points_and_any_other_sequentially() -> None:
    taught = tiny("ours", seed=7)
    with pytest.raises(UsageError, match="needs a router") as refused:
        taught.request("three tips", strategy="sot-router")
    assert "pasta train router" in (refused.value.hint or "")
    model = models.Pasta(taught.engine, router=fit(ROWS))
    by_points = model.request("three tips", strategy="sot-router")
    alone = model.request("add on", strategy="sot-router")
    assert by_points.expansion is not None
    assert alone.expansion is None
    assert alone.prompt == model.request("add on", strategy="sequential").prompt
    assert {by_points.strategy, alone.strategy} == {"sot-router"}
    asked = model.request("add on", strategy="sot")  # that asks no router
    assert asked.expansion is not None
    assert asked.strategy == "sot"


def test_the_stored_weights_are_sorted(tmp_path: Path) -> None:
    found = json.loads(write_router(fit(ROWS), tmp_path).read_text("utf-8"))
    assert found["version"] == 1
    assert [*found["weights"]] == sorted(found["weights"])
