"""The length-controlled win rate: ten published models, and tables small enough for paper."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_lm.measure.win_rates import (
    CHOICES,
    Calibration,
    Design,
    Judgement,
    cross_entropy,
    fit,
    length_controlled,
    read_calibration,
    read_judgements,
    win_rates,
)

MODELS = (
    "claude-2",
    "Mixtral-8x7B-Instruct-v0.1_concise",
    "OpenHermes-2.5-Mistral-7B",
    "gpt4_gamed",
    "vicuna-13b-v1.5",
    "gemma-7b-it",
    "text_davinci_001",
    "alpaca-7b",
    "gemma-2b-it",
    "FuseChat-Llama-3.1-8B-Instruct",
)
PLAIN = Calibration()
LENGTH_BIASED = [(900 - 50 * n, 500, n / 19) for n in range(20)]
"""Lengths of the reference and of the model, preference: the longer an answer, the more it wins."""


def rows(*cells: tuple[int, int, float | None]) -> list[Judgement]:
    return [
        Judgement("made", row, preference, len_1, len_2)
        for row, (len_1, len_2, preference) in enumerate(cells)
    ]


def design(seed: int, num_rows: int = 40) -> Design:
    draw = Random(seed)
    features = [[draw.uniform(-1, 1), draw.gauss(0, 1), 1.0] for _ in range(num_rows)]
    targets = [draw.random() for _ in range(num_rows)]
    weights = [draw.choice([0.1, 1.0]) for _ in range(num_rows)]
    return Design(np.array(features), np.array(targets), np.array(weights))


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_has_its_published_figures(shared_data: Path, name: str) -> None:
    folder = shared_data / "alpaca_eval"
    with (folder / "leaderboard_expected.csv").open() as file:
        published = {row["model"]: row for row in csv.DictReader(file)}[name]
    judged = read_judgements(folder / "annotations_weighted_gpt4_turbo.jsonl.gz")[name]
    tables = ("instruction_difficulty.csv", "df_gamed_surrogate.csv")
    calibration = read_calibration(*(folder / name for name in tables))
    figures = win_rates(judged, calibration)
    for key in ("win_rate", "standard_error"):
        assert figures[key] == pytest.approx(float(published[key]), abs=1e-6)
    wanted = float(published["length_controlled_winrate"])
    assert figures["length_controlled_winrate"] == pytest.approx(wanted, abs=0.15)
    exact = length_controlled(judged, calibration, inverse_penalty=float(published["C_best"]))
    assert exact is not None
    assert exact.win_rate == pytest.approx(wanted, abs=0.02)
    keys = ("w_tanh_len", "w_difficulty", "w_model")
    assert [*exact.weights.values()] == pytest.approx([float(published[k]) for k in keys], abs=5e-3)
    if published["lc_standard_error"]:
        error = float(published["lc_standard_error"])
        assert exact.standard_error == pytest.approx(error, abs=1e-3)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(CHOICES[2:8]))
def test_the_fit_is_a_minimum(seed: int, inverse_penalty: float) -> None:
    problem = design(seed)

    def cost(weights: Sequence[float]) -> float:
        rows_cost = cross_entropy(problem, problem.features @ np.array(weights)).sum()
        return float(np.abs(weights).sum() + inverse_penalty * rows_cost)

    found = fit(problem, inverse_penalty)
    least = cost(found)
    for feature in range(3):
        for step in (-1e-3, 1e-3, -0.1, 0.1):
            other = found.copy()
            other[feature] += step
            assert cost(other) >= least - 1e-9 * max(1, abs(least))


def test_a_model_that_wins_by_length_alone_wins_half_at_equal_length() -> None:
    found = length_controlled(rows(*LENGTH_BIASED), PLAIN, inverse_penalty=100.0)
    assert found is not None
    assert found.weights.keys() == {"length", "model"}
    assert found.weights["length"] < -1
    longer = rows(*((len_1 - 400, len_2, p) for len_1, len_2, p in LENGTH_BIASED))
    assert found.win_rate > (length_controlled(longer, PLAIN) or found).win_rate


def test_gamed_rows_do_not_constrain_the_weight_of_the_model() -> None:
    """A gamed row has no model feature, so a thousand of them leave the log odds alone."""
    judged = rows(*((500, 500, 0.8) for _ in range(40)))
    gamed = [(float(n % 2), (-1.0) ** n, 0.0) for n in range(1000)]
    found = length_controlled(judged, Calibration([0.0] * 40, gamed), inverse_penalty=1e4)
    assert found is not None
    assert found.weights["length"] < -2
    assert found.win_rate == pytest.approx(80, abs=0.05)


def test_too_few_rows_have_no_length_controlled_win_rate() -> None:
    assert length_controlled(rows(*LENGTH_BIASED[:4]), PLAIN) is None
