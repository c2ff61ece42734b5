"""Win rates of small tables, missing verdicts, invalid rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import InputError
from pasta_lm.measure.win_rates import (
    BASELINE,
    JUDGE,
    Calibration,
    Judgement,
    comparability,
    read_calibration,
    read_judgements,
    win_rates,
)

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
    found = win_rates(made(*preferences), Calibration())
    assert found["win_rate"] == pytest.approx(win_rate)
    assert found["standard_error"] == (None if error is None else pytest.approx(error, abs=1e-6))
    assert found["n_total"] == len(preferences)
    assert "refused" not in found


def test_missing_verdicts_are_named_and_there_is_no_win_rate() -> None:
    found = win_rates(made(1, None, 1, None, 0, 1, 1, 1), Calibration())
    assert [found[key] for key in ("n_total", "n_missing", "missing_rows")] == [6, 2, [1, 3]]
    for key in ("win_rate", "standard_error", "length_controlled_winrate", "lc_standard_error"):
        assert found[key] is None
    assert found["refused"] == "no win rate: 2 of 8 rows have no verdict (1, 3)"
    many = win_rates(made(1, *[None] * 30), Calibration())
    assert str(many["refused"]).endswith("(1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 20 more)")
    assert len(many["missing_rows"]) == 30


def test_if_missing_verdicts_are_allowed_both_rates_are_given() -> None:
    figures = win_rates(made(1, None, 1, 0), Calibration(), allow_missing=True)
    assert figures["win_rate"] == pytest.approx(200 / 3)
    assert figures["win_rate_missing_lost"] == 50
    assert "refused" not in figures
    nothing = win_rates(made(None, None), Calibration(), allow_missing=True)
    assert nothing["win_rate"] is nothing["length_controlled_winrate"] is None


def test_a_row_without_difficulty_is_refused_and_a_difficulty_without_a_row_counted() -> None:
    with pytest.raises(InputError, match="row 1 has no difficulty: the table ends at 0"):
        win_rates(made(1, 1), Calibration([0.5]))
    assert win_rates(made(1, 0), Calibration([0.0] * 5))["n_absent"] == 3
    assert comparability(JUDGE, BASELINE, 805, has_difficulty=False)[0] is False


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
    result, label = comparability(judge, baseline, num)
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
    assert read_judgements(file) == {"made": [Judgement("made", 0, preference, 10, 20)]}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", ":2: not JSON"),
        ("[]", ":2: not a JSON object"),
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
        read_judgements(file)
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
            read_calibration(file, file)
    good = tmp_path / "good.csv"
    good.write_text("index,instruction_difficulty\n0,0.5\n")
    file.write_text("preference,std_delta_len,instruction_difficulty\n1.5,0,0\n")
    with pytest.raises(InputError, match="not from 0 to 1"):
        read_calibration(good, file)
    with pytest.raises(InputError, match="no such file"):
        read_judgements(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="no judgements"):
        read_judgements(tmp_path / "empty.jsonl")
