"""Win rates of small tables, missing verdicts, invalid rows."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean, quantiles
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pasta_lm.errors import InputError
from pasta_lm.measure import win_rates
from pasta_lm.measure.table import Interval, geometric_mean, mean, ratio, to_json
from pasta_lm.measure.win_rates import BASELINE, CHOICES, JUDGE, Calibration, Design, Judgement

ROW = {"model": "made", "row": 0, "preference": 1.5, "len_1": 10, "len_2": 20}


def made(*preferences: float | None) -> list[Judgement]:
    return [Judgement("made", row, one, 10, 20 + row) for row, one in enumerate(preferences)]


@pytest.mark.parametrize(
    ("preferences", "win_rate", "error"),
    [
        ((1, 0, 0.5, 0.5), 50.0, 20.412415),
        ((0.75, 0.25), 50.0, 25.0),
        ((0.9,), 90.0, None),
        ((0, 0, 0), 0.0, 0.0),
    ],
)
def test_a_win_rate_is_the_mean_preference_in_percent(
    preferences: tuple[float, ...], win_rate: float, error: float | None
) -> None:
    found = win_rates.Rates(made(*preferences), Calibration()).figures()
    assert found["win_rate"] == pytest.approx(win_rate)
    assert found["standard_error"] == (None if error is None else pytest.approx(error, abs=1e-6))
    assert found["n_total"] == len(preferences)
    assert "refused" not in found


def test_missing_verdicts_are_named_and_there_is_no_win_rate() -> None:
    found = win_rates.Rates(made(1, None, 1, None, 0, 1, 1, 1), Calibration()).figures()
    assert [found[key] for key in ("n_total", "n_missing", "missing_rows")] == [6, 2, [1, 3]]
    for key in ("win_rate", "standard_error", "length_controlled_winrate", "lc_standard_error"):
        assert found[key] is None
    assert found["refused"] == "no win rate: 2 of 8 rows have no verdict (1, 3)"
    many = win_rates.Rates(made(1, *[None] * 30), Calibration()).figures()
    assert str(many["refused"]).endswith("(1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 20 more)")
    assert len(many["missing_rows"]) == 30


def test_if_missing_verdicts_are_allowed_both_rates_are_given() -> None:
    figures = win_rates.Rates(made(1, None, 1, 0), Calibration(), allow_missing=True).figures()
    assert figures["win_rate"] == pytest.approx(200 / 3)
    assert figures["win_rate_missing_lost"] == 50
    assert "refused" not in figures
    nothing = win_rates.Rates(made(None, None), Calibration(), allow_missing=True).figures()
    assert nothing["win_rate"] is nothing["length_controlled_winrate"] is None


def test_a_row_without_difficulty_is_refused_and_without_any_nothing_is_comparable() -> None:
    with pytest.raises(InputError, match="row 1 has no difficulty: the table ends at 0"):
        win_rates.Rates(made(1, 1), Calibration([0.5]))
    assert win_rates.comparability(JUDGE, BASELINE, 805, has_difficulty=False)[0] is False


@pytest.mark.parametrize(
    ("judge", "baseline", "num", "is_comparable", "says"),
    [
        (JUDGE, BASELINE, 805, True, "as on AlpacaEval 2's leaderboard"),
        (JUDGE, BASELINE, 803, True, "over 803 of 805 instructions"),
        ("another/stated-v1", BASELINE, 805, False, "the judge is another/stated-v1"),
        (JUDGE, "Baseline-SFT", 805, False, "the baseline is Baseline-SFT"),
        (None, None, 805, None, "the rows name no judge and no baseline"),
        ("another", None, 805, False, "not comparable"),
    ],
)
def test_another_judge_or_baseline_is_not_comparable(
    judge: str | None, baseline: str | None, num: int, is_comparable: bool | None, says: str
) -> None:
    result, label = win_rates.comparability(judge, baseline, num)
    assert result is is_comparable
    assert says in label


@pytest.mark.parametrize(
    ("stored", "preference"),
    [(1, 0.0), (2, 1.0), (1.25, 0.25), (1.5, 0.5), (0, 0.5), (None, None), (float("nan"), None)],
)
def test_a_stored_preference_is_read(tmp_path: Path, stored: Any, preference: Any) -> None:
    file = tmp_path / "rows.jsonl.gz"
    with gzip.open(file, "wt") as out:
        out.write(json.dumps(ROW | {"preference": stored}) + "\n\n")
    assert win_rates.read_judgements(file) == {"made": [Judgement("made", 0, preference, 10, 20)]}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (json.dumps(ROW), ":2: made has row 0 twice"),
        (json.dumps(ROW | {"row": 1, "preference": 3}), ":2: 'preference' is 3, but must be"),
        (json.dumps(ROW | {"row": 1, "preference": "2"}), "'preference' is '2', not a number"),
        (json.dumps(ROW | {"row": -1}), ":2: 'row' is -1, below 0"),
        (json.dumps(ROW | {"row": 1, "len_2": None}), "'len_2' is None"),
        (json.dumps({k: v for k, v in ROW.items() if k != "preference"}), "no 'preference'"),
    ],
)
def test_an_invalid_judgement_is_an_error_with_its_line(
    tmp_path: Path, line: str, says: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(InputError) as raised:
        win_rates.read_judgements(file)
    assert says in str(raised.value)


def test_invalid_tables_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    for text, says in (
        ("index\n0\n", "no column instruction_difficulty"),
        ("index,instruction_difficulty\n1,0.5\n", "must count its rows from 0"),
        ("index,instruction_difficulty\n0,high\n", ":2: a cell is no number"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=says):
            win_rates.read_calibration(file, file)
    good = tmp_path / "good.csv"
    good.write_text("index,instruction_difficulty\n0,0.5\n")
    file.write_text("preference,std_delta_len,instruction_difficulty\n1.5,0,0\n")
    with pytest.raises(InputError, match="not from 0 to 1"):
        win_rates.read_calibration(good, file)
    with pytest.raises(InputError, match="no such file"):
        win_rates.read_judgements(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="no judgements"):
        win_rates.read_judgements(tmp_path / "empty.jsonl")


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
    judged = win_rates.read_judgements(folder / "annotations_weighted_gpt4_turbo.jsonl.gz")[name]
    tables = ("instruction_difficulty.csv", "df_gamed_surrogate.csv")
    calibration = win_rates.read_calibration(*(folder / name for name in tables))
    figures = win_rates.Rates(judged, calibration).figures()
    for key in ("win_rate", "standard_error"):
        assert figures[key] == pytest.approx(float(published[key]), abs=1e-6)
    wanted = float(published["length_controlled_winrate"])
    assert figures["length_controlled_winrate"] == pytest.approx(wanted, abs=0.15)
    exact = win_rates.length_controlled(
        judged, calibration, inverse_penalty=float(published["C_best"])
    )
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
        rows_cost = win_rates.cross_entropy(problem, problem.features @ np.array(weights)).sum()
        return float(np.abs(weights).sum() + inverse_penalty * rows_cost)

    found = win_rates.fit(problem, inverse_penalty)
    least = cost(found)
    for feature in range(3):
        for step in (-1e-3, 1e-3, -0.1, 0.1):
            other = found.copy()
            other[feature] += step
            assert cost(other) >= least - 1e-9 * max(1, abs(least))


def test_a_model_that_wins_by_length_alone_wins_half_at_equal_length() -> None:
    found = win_rates.length_controlled(rows(*LENGTH_BIASED), PLAIN, inverse_penalty=100.0)
    assert found is not None
    assert found.weights.keys() == {"length", "model"}
    assert found.weights["length"] < -1
    longer = rows(*((len_1 - 400, len_2, p) for len_1, len_2, p in LENGTH_BIASED))
    assert found.win_rate > (win_rates.length_controlled(longer, PLAIN) or found).win_rate


def test_gamed_rows_do_not_constrain_the_weight_of_the_model() -> None:
    """A gamed row has no model feature, so a thousand of them leave the log odds alone."""
    judged = rows(*((500, 500, 0.8) for _ in range(40)))
    gamed = [(float(n % 2), (-1.0) ** n, 0.0) for n in range(1000)]
    found = win_rates.length_controlled(judged, Calibration([0.0] * 40, gamed), inverse_penalty=1e4)
    assert found is not None
    assert found.weights["length"] < -2
    assert found.win_rate == pytest.approx(80, abs=0.05)


def test_too_few_rows_have_no_length_controlled_win_rate() -> None:
    assert win_rates.length_controlled(rows(*LENGTH_BIASED[:4]), PLAIN) is None


NUM_DRAWS = 4000
Pairs = Sequence[tuple[float, float]]


def found(interval: Interval | None) -> Interval:
    assert interval is not None
    return interval


def tiny_bootstrap(statistic: Callable[[Pairs], float], pairs: Pairs) -> tuple[float, float]:
    """Draw prompts again and again, as the definition says, and return where 95 % of draws lie."""
    random = Random(1)
    draws = [statistic(random.choices(pairs, k=len(pairs))) for _ in range(NUM_DRAWS)]
    cuts = quantiles(draws, n=40, method="inclusive")
    return cuts[0], cuts[-1]


def mean_of(pairs: Pairs) -> float:
    return fmean(value for value, _ in pairs)


def geometric_mean_of(pairs: Pairs) -> float:
    return exp(fmean(log(value) for value, _ in pairs))


def ratio_of(pairs: Pairs) -> float:
    return sum(part for part, _ in pairs) / sum(whole for _, whole in pairs)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        *((mean(v), m) for v, m in [([1, 2, 6], 3), ([0, 1], 0.5), ([-2, 2], 0), ([7], 7)]),
        (mean([True, False, True, True]), 0.75),
        *((geometric_mean(v), m) for v, m in [([1, 4], 2), ([0.5, 2], 1), ([1, 1, 8], 2)]),
        (ratio([1, 2], [2, 4]), 0.5),
        (ratio([0, 3], [1, 3]), 0.75),  # the mean of the two ratios would be 0.5
        (ratio([0, 1, 0], [0, 2, 0]), 0.5),
        (ratio([0, 0], [3, 4]), 0),
        (ratio([5], [4]), 1.25),
    ],
)
def test_the_estimate_is_that_of_the_definition(interval: Interval | None, expected: float) -> None:
    assert found(interval).mean == pytest.approx(expected)


def test_empty_samples_have_no_interval() -> None:
    assert mean([]) is None
    assert geometric_mean([]) is None
    assert ratio([], []) is None
    assert ratio([0, 0], [0, 0]) is None


@pytest.mark.parametrize("num", [10, 150])
def test_bounds_equal_those_of_a_plain_bootstrap(num: int) -> None:
    random = Random(num)
    values = [(random.betavariate(0.5, 0.2), 0.0) for _ in range(num)]
    speedups = [(random.lognormvariate(0.5, 0.4), 0.0) for _ in range(num)]
    pairs = [(random.randint(0, whole), whole) for whole in random.choices(range(7), k=num)]
    for interval, statistic, sample in [
        (mean([value for value, _ in values]), mean_of, values),
        (geometric_mean([value for value, _ in speedups]), geometric_mean_of, speedups),
        (ratio(*zip(*pairs, strict=True)), ratio_of, pairs),
    ]:
        one = found(interval)
        low, high = tiny_bootstrap(statistic, sample)
        # What two bootstraps of so many draws differ by is a small part of the width.
        assert (one.low, one.high) == pytest.approx((low, high), abs=0.1 * (high - low))
        assert one.low < one.mean < one.high


def test_paired_samples_are_drawn_together() -> None:
    wholes = [1.0, 2, 3, 50, 4, 5, 6, 1]
    one = found(ratio([whole / 2 for whole in wholes], wholes))
    assert (one.low, one.high) == pytest.approx((0.5, 0.5))  # drawn apart, 50 would meet 1


def test_intervals_are_rounded_to_five_digits_in_json() -> None:
    told = to_json(Interval(1 / 3, 0.123456789, 2.0))
    assert told == {"mean": 0.33333, "low": 0.12346, "high": 2.0}
