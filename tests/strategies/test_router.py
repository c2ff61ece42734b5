"""The router of SoT: what it learns by hand, how it is kept, and who asks it."""

from __future__ import annotations

import json
from itertools import islice
from math import exp, log
from pathlib import Path
from random import Random

import pytest

from pasta_lm.errors import InputError, ModelError, UsageError
from pasta_lm.strategies import model as models
from pasta_lm.strategies.router import (
    FILE_NAME,
    LEAST_PROMPTS,
    RATE,
    LearnedRouter,
    features,
    learn,
    read_router,
    write_router,
)
from pasta_lm.tasks import mixture
from pasta_lm.tasks.rivals import SOT_ANNOTATORS
from tests.evaluate.tiny import tiny

ROWS = [("Three tips", True)] * 5 + [("Add on, tips", False)] * 8


def test_words_and_neighbours_are_what_it_reads() -> None:
    assert features("On, and on: Über 2") == {
        *("on", "and", "über", "2"),
        *("on and", "and on", "on über", "über 2"),
    }
    assert features("?!") == set()


def loss(router: LearnedRouter, rows: list[tuple[str, bool]]) -> float:
    return sum(
        log(1 + exp(-router.log_odds(prompt) * (1 if should else -1))) for prompt, should in rows
    )


def test_its_first_steps_are_those_of_gradient_descent() -> None:
    # All prompts alike: each step adds rate * weight * (right - probability) to bias and word.
    bias, rows = 0.0, [("tips", True)] * 5 + [("tips", False)] * 4
    router = learn(rows, num_epochs=1)
    order = [should for _, should in rows]
    Random(0).shuffle(order)
    for should in order:
        bias += RATE * (9 / 10 if should else 9 / 8) * (should - 1 / (1 + exp(-2 * bias)))
    assert router.bias == pytest.approx(bias)
    assert router.weights == {"tips": pytest.approx(bias)}


def test_it_comes_to_tell_prompts_apart_and_says_the_same_every_time() -> None:
    router = learn(ROWS)
    assert (router("three tips"), router("three birds"), router("add on")) == (True, True, False)
    assert router.log_odds("birds sing") == router.bias  # it has never seen them
    assert loss(learn(ROWS, num_epochs=9), ROWS) < loss(learn(ROWS, num_epochs=1), ROWS)
    assert learn(ROWS) == router


def test_what_few_prompts_have_says_nothing() -> None:
    found = learn([*ROWS, *[("rare", True)] * (LEAST_PROMPTS - 1)]).weights
    assert "rare" not in found
    assert "three" in found


@pytest.mark.parametrize("rows", [[], ROWS[:2], ROWS[-2:]])
def test_prompts_of_one_kind_teach_nothing(rows: list[tuple[str, bool]]) -> None:
    with pytest.raises(InputError, match="learns nothing"):
        learn(rows)


def test_it_stands_beside_its_model_and_comes_back(tmp_path: Path) -> None:
    assert read_router(tmp_path) is None
    router = learn(ROWS)
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
def test_a_file_that_is_no_router_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ModelError, match=r"router\.json is no router") as refused:
        read_router(tmp_path)
    assert "pasta train router" in (refused.value.hint or "")


def test_on_the_tasks_it_tells_prompts_apart_that_it_has_not_seen() -> None:
    def rows(split: str, name: str, num: int) -> list[tuple[str, bool]]:
        return [
            (task.prompt, len(SOT_ANNOTATORS[name](task, 0).blocks) > 1)
            for task in islice(mixture(split, 3), num)
        ]

    seen, router = rows("dev", "sot_gold", 200), learn(rows("train", "sot_noisy", 2000))
    num_right = sum(router(prompt) == should for prompt, should in seen)
    largest = max(sum(should for _, should in seen), sum(not should for _, should in seen))
    assert num_right >= largest + 10  # better than one answer to all


def test_a_routed_prompt_is_answered_by_points_and_any_other_sequentially() -> None:
    taught = tiny("ours", seed=7)
    with pytest.raises(UsageError, match="needs a router") as refused:
        taught.request("three tips", strategy="sot-router")
    assert "pasta train router" in (refused.value.hint or "")
    model = models.Pasta(taught.engine, router=learn(ROWS))
    by_points = model.request("three tips", strategy="sot-router")
    alone = model.request("add on", strategy="sot-router")
    assert by_points.expansion is not None
    assert alone.expansion is None
    assert alone.prompt == model.request("add on", strategy="sequential").prompt
    assert {by_points.strategy, alone.strategy} == {"sot-router"}
    asked = model.request("add on", strategy="sot")  # that asks no router
    assert asked.expansion is not None
    assert asked.strategy == "sot"


def test_a_file_of_weights_is_sorted_so_that_it_can_be_compared(tmp_path: Path) -> None:
    found = json.loads(write_router(learn(ROWS), tmp_path).read_text("utf-8"))
    assert found["version"] == 1
    assert [*found["weights"]] == sorted(found["weights"])
