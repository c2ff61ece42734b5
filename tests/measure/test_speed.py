"""Speedups, parallelism and lengths of small hand-made answers, and their tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.data.answer_record import AnswerRecord
from pasta_lm.measure.speed import read_systems, realised, speed, speed_report
from pasta_lm.measure.table import Interval, to_json

lengths = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=8)
USUAL = {"program": "x" * 20, "finish_reason": "stop", "num_illegal": 0}


def answered(**changes: Any) -> AnswerRecord:
    """Return an answer that ended by itself, of ten tokens one after another."""
    usual = USUAL | {"text": "x" * 20, "num_content_tokens": 10, "critical_path": 10}
    return AnswerRecord(**(usual | changes))


def answers(key: str, values: Sequence[Any]) -> list[AnswerRecord]:
    return [answered(**{key: value}) for value in values]


def mean(interval: Interval | None) -> float | None:
    return interval and round(interval.mean, 5)


@pytest.mark.parametrize(
    ("figure", "key", "ours", "theirs", "expected"),
    [
        ("theoretical_speedup", "critical_path", (10,), (20,), 2.0),
        ("theoretical_speedup", "critical_path", (20,), (10,), 0.5),
        # The arithmetic mean of 4 and 1/4 would be more than 2.
        ("theoretical_speedup", "critical_path", (10, 40), (40, 10), 1.0),
        ("theoretical_speedup", "critical_path", (10, 10), (80, 20), 4.0),
        # Answers that ended before their first token.
        ("theoretical_speedup", "critical_path", (0,), (3,), 3.0),
        ("theoretical_speedup", "critical_path", (3,), (0,), 0.33333),
        ("length_ratio", "text", ("xx",), ("x",), 2.0),
        ("length_ratio", "text", ("xx", "x"), ("x", "xx"), 1.0),
        ("length_ratio", "text", ("",), ("xx",), 0.5),
        ("parallelism", "num_content_tokens", (20,), (1,), 2.0),
        ("parallelism", "num_content_tokens", (40, 10), (1, 1), 2.0),
        ("parallelism", "num_content_tokens", (7,), (1,), 0.7),
        ("parallelism", "num_content_tokens", (0,), (1,), 0.001),
    ],
)
def test_figures_are_geometric_means_over_prompts(
    figure: str, key: str, ours: tuple[Any, ...], theirs: tuple[Any, ...], expected: float
) -> None:
    assert mean(speed(answers(key, ours), answers(key, theirs))[figure]) == expected


@given(lengths)
def test_speedup_equals_parallelism_for_equal_content(pairs: list[tuple[int, int]]) -> None:
    """Where the baseline decodes the very same content one after another, the two are the same."""
    ours = [answered(num_content_tokens=n, critical_path=path) for n, path in pairs]
    base = [answered(num_content_tokens=n, critical_path=n) for n, _ in pairs]
    figures = to_json(speed(ours, base))
    assert figures["theoretical_speedup"] == pytest.approx(figures["parallelism"], abs=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "speedup", "num_timed"),
    [
        ((), (), None, 0),
        ((1.0,), (2.0,), 2.0, 1),
        ((1.0, 4.0), (4.0, 1.0), 1.0, 2),
        ((0.5, None), (1.0, 1.0), 2.0, 1),  # an answer that was decoded among others has no clock
        ((1.0, 1.0), (1.5, None), 1.5, 1),
        ((None,), (None,), None, 0),
    ],
)
def test_realised_speedup_is_the_ratio_of_clocks(
    ours: Sequence[float | None],
    theirs: Sequence[float | None],
    speedup: float | None,
    num_timed: int,
) -> None:
    figures = realised(answers("wall_s", ours), answers("wall_s", theirs))
    assert (mean(figures["realised_speedup"]), figures["num_timed"]) == (speedup, num_timed)


def record(system: str, prompt: str, path: int, wall_s: float | None = 1.0, **rest: Any) -> Any:
    usual = {
        "instruction_id": prompt,
        "system": system,
        "text": "x" * path,
        "num_content_tokens": 12,
        "critical_path": path,
        "wall_s": wall_s,
        "kind": "generated",
    }
    return usual | rest


def table_of(*sources: Path, baseline: str = "sequential") -> Any:
    return speed_report(sources, baseline).to_dict()["systems"]


def stored(tmp_path: Path, *rows: Any) -> Path:
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Return records of two systems: four and one times as fast by path, two and half by clock."""
    return stored(
        tmp_path,
        record("sequential", "1", 40, 2.0),
        record("pasta", "1", 10, 1.0),
        record("sequential", "2", 10, 1.0),
        record("pasta", "2", 10, 2.0),
        record("sequential", "3", 10, None),
    )


def test_the_table_has_both_speedups(records: Path) -> None:
    table = table_of(records)
    assert [*table] == ["sequential", "pasta"]
    figures = table["pasta"]
    means = {
        "theoretical_speedup": 2.0,
        "realised_speedup": 1.0,
        "efficiency": 0.5,
        "parallelism": 1.2,
        "length_ratio": 0.5,
    }
    assert {key: figures[key]["mean"] for key in means} == pytest.approx(means, abs=1e-5)
    counts = ("num_prompts", "num_timed", "num_unpaired", "kinds")
    assert [figures[key] for key in counts] == [2, 2, 1, ["generated"]]


def test_each_run_is_compared_with_its_own_baseline(tmp_path: Path) -> None:
    # The machine was twice as slow in the second run, for the baseline too.
    runs = []
    for name, slowness in (("pasta", 1.0), ("apar", 2.0)):
        (tmp_path / name).mkdir()
        rows = (record("sequential", "1", 40, 4 * slowness), record(name, "1", 10, 2 * slowness))
        runs.append(stored(tmp_path / name, *rows))
    table = table_of(*runs)
    assert [*table] == ["sequential", "pasta", "apar"]
    assert [table[name]["realised_speedup"]["mean"] for name in table] == [1.0, 2.0, 2.0]


def test_runs_that_share_a_baseline_or_a_system_are_read_as_one(tmp_path: Path) -> None:
    runs = []
    for prompt in "12":
        (tmp_path / prompt).mkdir()
        rows = (record("sequential", prompt, 40), record("pasta", prompt, 10))
        runs.append(stored(tmp_path / prompt, *rows))
    assert table_of(*runs)["pasta"]["num_prompts"] == 2
    (tmp_path / "alone").mkdir()
    alone = stored(tmp_path / "alone", record("apar", "1", 20))
    table = table_of(*runs, alone)
    assert (table["apar"]["num_prompts"], table["apar"]["num_unpaired"]) == (1, 1)


def test_the_record_with_a_clock_is_taken(tmp_path: Path) -> None:
    rows = [record("pasta", "1", 10, wall) for wall in (None, 3.0, None)]
    (timing,) = read_systems([stored(tmp_path, *rows)])["pasta"].values()
    assert timing.wall_s == 3.0


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"system": "pasta"}, ":1: no record of an answer"),
        (record("pasta", "1", -1), "'critical_path' is -1, not a count"),
        (record("pasta", "1", 1, 0.0), "'wall_s' is 0.0, not a time"),
        (record("pasta", "1", 1, num_content_tokens=True), "'num_content_tokens' is True"),
    ],
)
def test_an_invalid_row_is_an_error_with_its_line(tmp_path: Path, row: Any, says: str) -> None:
    with pytest.raises(InputError) as raised:
        read_systems([stored(tmp_path, row)])
    assert says in str(raised.value)


def test_empty_sources_and_an_unknown_baseline_are_refused(records: Path) -> None:
    (records.parent / "answers.jsonl").touch()
    with pytest.raises(InputError, match="no answers in"):
        read_systems([records.parent])
    with pytest.raises(UsageError, match="no answers of the baseline 'sot'"):
        table_of(records, baseline="sot")


def test_a_speedup_compares_answers_of_the_same_length_that_nothing_cut(tmp_path: Path) -> None:
    rows = [
        record("sequential", "1", 40, 2.0),
        record("same", "1", 10, 1.0, text="x" * 42),
        record("short", "1", 10, 1.0, text="x" * 30),
        record("cut", "1", 10, 1.0, text="x" * 40, finish_reason="length"),
    ]
    report = speed_report([stored(tmp_path, *rows)], "sequential")
    shown = {one.title: one for one in report.tables()}
    titles = {name: [row[0] for row in one.rows] for name, one in shown.items()}
    assert "realised speedup" in titles["same"]
    for name, why in (
        ("short", "lengths are 0.75 of the baseline's"),
        ("cut", "1 answers were cut"),
    ):
        assert "realised speedup" not in titles[name]
        assert "theoretical speedup" not in titles[name]
        assert list(shown[name].rows[0][:2]) == ["tokens/s", 12.0]
        assert why in shown[name].note
