"""Comparisons: figures of points, pairing by prompt, the frontier, refused recipes."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.tests.evaluate.records import FAMILIES, write_records
from lab.tests.tasks.reading import plain, syncless
from pasta_lab.evaluate.frontier import pareto, report
from pasta_lab.evaluate.points import Comparison, Pairing, Point, Speed, Verdict, pair, read_points
from pasta_lab.evaluate.records import read_answers, write_answers
from pasta_lm.errors import InputError, UsageError
from pasta_lm.measure.table import Interval
from pasta_lm.recipe import read_recipe


def point(folder: Path, name: str, method: str = "PASTA", **changes: Any) -> Point:
    usual = {"name": name, "method": method, "model": f"models/{name}"}
    return Point(**{**usual, "records": str(folder / f"{name}.jsonl"), **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a perfect model, one without syncs and one that never forks left answers."""
    folder = tmp_path_factory.mktemp("records")
    write_records(folder / "perfect.jsonl")
    write_records(folder / "syncless.jsonl", syncless)
    write_records(folder / "plain.jsonl", plain, num_timed=0)
    return folder


@pytest.fixture(scope="module")
def comparison(folder: Path) -> Comparison:
    points = (
        point(folder, "perfect"),
        point(folder, "syncless", "rule"),
        point(folder, "plain", "none"),
        point(folder, "absent", "rule", model="a model"),
    )
    return Comparison(points=points, ours="PASTA", baseline="base", num_prompts=9, num_timed=1)


@pytest.fixture(scope="module")
def found(comparison: Comparison) -> dict[str, Any]:
    return report(comparison, read_points(comparison))


def figures(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = (one for one in found["points"] if one["name"] == name)
    return dict(one)


# --- records


def test_records_survive_a_round_trip(folder: Path, tmp_path: Path) -> None:
    rows = read_answers(folder / "perfect.jsonl")
    write_answers(tmp_path / "again.jsonl", rows)
    assert read_answers(tmp_path / "again.jsonl") == rows
    assert {row.kind for row in rows} == {"simulated"}


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"structure": {}}', '{"structure": 1}'])
def test_an_invalid_record_is_an_error_with_its_line(
    folder: Path, tmp_path: Path, line: str
) -> None:
    first = (folder / "perfect.jsonl").read_text("utf-8").split("\n")[0]
    (tmp_path / "bad.jsonl").write_text(f"{first}\n{line}\n", "utf-8")
    with pytest.raises(InputError, match=r"bad.jsonl:2: no"):
        read_answers(tmp_path / "bad.jsonl")


# --- figures


def test_a_model_that_never_forks_is_as_fast_and_as_good_as_the_baseline(
    found: dict[str, Any],
) -> None:
    one = figures(found, "plain")
    assert one["theoretical_speedup"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert one["quality_difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert (one["wins"], one["ties"], one["losses"], one["answers_forked"]) == (0, 9, 0, 0.0)
    assert one["realised_speedup"] is None


def test_a_speedup_is_the_geometric_mean_over_prompts(
    comparison: Comparison, found: dict[str, Any], folder: Path
) -> None:
    rows = [row for row in read_answers(folder / "perfect.jsonl") if row.wall_s is None]
    paths = {(row.task_id, row.strategy): row.critical_path for row in rows}
    names = {row.task_id for row in rows}
    logs = [log(paths[n, "sequential"] / paths[n, "pasta"]) for n in names]
    one = figures(found, "perfect")
    assert one["theoretical_speedup"]["mean"] == pytest.approx(exp(fmean(logs)), abs=1e-5)
    assert one["theoretical_speedup"]["mean"] > 1.2
    assert one["num_timed"] == len(FAMILIES)
    assert one["families"]["takings"]["num_prompts"] == 3
    assert one["families"]["legs"]["quality"] is None
    assert found["num_prompts"] == 9
    assert found["kinds"] == ["simulated"]


def test_a_point_whose_answers_are_shorter_is_flagged(folder: Path, tmp_path: Path) -> None:
    rows = read_answers(folder / "plain.jsonl")
    short = [
        replace(r, text=r.text[: len(r.text) * 9 // 10]) if r.strategy == "pasta" else r
        for r in rows
    ]
    write_answers(tmp_path / "short.jsonl", short)
    write_answers(tmp_path / "usual.jsonl", rows)
    points = (point(tmp_path, "short"), point(tmp_path, "usual"))
    cut = Comparison(points=points, ours="PASTA", baseline="b")
    found = report(cut, read_points(cut))
    assert [one["is_length_unusual"] for one in found["points"]] == [True, False]


def test_missing_points_are_reported_with_their_command(
    comparison: Comparison, found: dict[str, Any], folder: Path
) -> None:
    (missing,) = found["not_run"]
    assert missing["name"] == "absent"
    assert missing["command"] == (
        "pasta-lab evaluate tasks --model 'a model' --baseline base --strategies sequential,pasta "
        "--split test --num-prompts 9 --num-timed 1 --set threads=1 "
        f"--records {folder}/absent.jsonl"
    )


def test_a_comparison_without_records_has_a_report(tmp_path: Path) -> None:
    empty = Comparison(points=(point(tmp_path, "none"),), ours="PASTA", baseline="b")
    found = report(empty, read_points(empty))
    assert (found["points"], found["comparisons"], found["num_prompts"]) == ([], [], 0)
    assert len(found["not_run"]) == 1


# --- pairs


def between(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("quality", "speed", "verdict"),
    [
        ((0.1, 0.2), (1.1, 1.3), Verdict.BETTER),
        ((0.1, 0.2), (0.9, 1.2), Verdict.BETTER),
        ((-0.1, 0.2), (1.1, 1.3), Verdict.BETTER),
        ((0.0, 0.0), (1.1, 1.3), Verdict.BETTER),
        ((0.1, 0.2), (0.8, 1.1), Verdict.NOT_SEPARATED),
        ((-0.2, 0.1), (1.1, 1.3), Verdict.NOT_SEPARATED),
        ((-0.1, 0.2), (0.9, 1.3), Verdict.NOT_SEPARATED),
        ((0.0, 0.2), (1.0, 1.3), Verdict.NOT_SEPARATED),
        ((0.1, 0.2), (0.7, 0.9), Verdict.TRADE),
        ((-0.2, -0.1), (1.1, 1.3), Verdict.TRADE),
        ((-0.2, -0.1), (0.7, 0.9), Verdict.WORSE),
        ((-0.2, -0.1), (0.8, 1.1), Verdict.WORSE),
        ((-0.2, 0.1), (0.7, 0.9), Verdict.WORSE),
    ],
)
def test_a_verdict_needs_an_interval_that_excludes_no_difference(
    quality: tuple[float, float], speed: tuple[float, float], verdict: Verdict
) -> None:
    assert Pairing(between(*quality), between(*speed)).verdict is verdict


ends = st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3).map(sorted)


@given(ends, ends)
def test_swapping_the_points_reverses_the_verdict(quality: list[float], speed: list[float]) -> None:
    def pairing(q: list[float], s: list[float]) -> Pairing:
        return Pairing(Interval(q[1], q[0], q[2]), Interval(exp(s[1]), exp(s[0]), exp(s[2])))

    def other(values: list[float]) -> list[float]:
        return [-value for value in reversed(values)]

    reverse = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    ours = pairing(quality, speed).verdict
    assert pairing(other(quality), other(speed)).verdict is reverse.get(ours, ours)


def test_points_are_paired_by_prompt(comparison: Comparison) -> None:
    perfect, syncless, _ = read_points(comparison)
    found = pair(perfect, syncless, Speed.THEORETICAL)
    assert found is not None
    one, other = perfect.log_speed(Speed.THEORETICAL), syncless.log_speed(Speed.THEORETICAL)
    assert found.speed.mean == pytest.approx(exp(fmean(one[n] - other[n] for n in one)))
    assert found.quality.mean == 0
    back = pair(syncless, perfect, Speed.THEORETICAL)
    assert back is not None
    assert back.speed.mean == pytest.approx(1 / found.speed.mean)


def test_each_other_point_is_paired_with_our_best_and_realised_only_if_timed(
    found: dict[str, Any],
) -> None:
    rows = {(row["rival"], row["speed"]): row for row in found["comparisons"]}
    assert rows.keys() == {
        *(("syncless", "theoretical"), ("syncless", "realised"), ("plain", "theoretical"))
    }
    plain = rows["plain", "theoretical"]
    assert (plain["verdict"], plain["by"]) == ("better", "perfect")
    assert plain["speed_ratio"]["low"] > 1


# --- the frontier

places = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=12)


@given(places)
def test_the_frontier_has_the_points_that_no_other_beats(drawn: list[tuple[int, int]]) -> None:
    points = [
        {"name": str(i), "theoretical_speedup": {"mean": fast}, "quality": {"mean": good}}
        for i, (fast, good) in enumerate(drawn)
    ]
    kept = pareto(points, Speed.THEORETICAL)
    on_it = [drawn[int(name)] for name in kept]
    assert on_it == sorted(on_it)
    assert [good for _, good in on_it] == sorted((good for _, good in on_it), reverse=True)
    for index, (fast, good) in enumerate(drawn):
        is_beaten = any(f >= fast and g >= good and (f, g) != (fast, good) for f, g in on_it)
        assert is_beaten is (str(index) not in kept)


# --- refusals


def test_answers_to_other_prompts_are_refused(folder: Path, tmp_path: Path) -> None:
    write_records(tmp_path / "few.jsonl", num=2)
    points = (point(folder, "perfect"), point(tmp_path, "few"))
    with pytest.raises(InputError, match="answers to other prompts"):
        read_points(Comparison(points=points, ours="PASTA", baseline="b"))


def test_answers_of_another_baseline_are_refused(folder: Path, tmp_path: Path) -> None:
    rows = read_answers(folder / "perfect.jsonl")
    changed = [replace(r, text="No.") if r.strategy == "sequential" else r for r in rows]
    write_answers(tmp_path / "other.jsonl", changed)
    points = (point(folder, "perfect"), point(tmp_path, "other"))
    with pytest.raises(InputError, match="9 different answers of the baseline"):
        read_points(Comparison(points=points, ours="PASTA", baseline="b"))


GOOD = """
ours = "PASTA"
baseline = "b"
[[points]]
name = "one"
method = "PASTA"
model = "m"
records = "r.jsonl"
"""


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (("records", "recrods"), "unknown key points.recrods"),
        (("baseline", "base_line"), "unknown key base_line"),
        (('model = "m"', "model = 1"), "points.model must be a valid string, not 1"),
        (('model = "m"', ""), "points.model is missing"),
        (('ours = "PASTA"', 'ours = "APAR"'), "ours is 'APAR', and no point has that method"),
        (
            ('ours = "PASTA"', 'ours = "PASTA"\nnum_prompts = "9"'),
            "num_prompts must be a valid integer",
        ),
        ((GOOD, 'ours = "x"'), "points is missing"),
        ((GOOD, "points = [1]"), "points must be an object"),
        ((GOOD, "="), "not valid TOML"),
        ((GOOD, GOOD + GOOD.partition('"b"')[2]), "two points have the name 'one'"),
    ],
)
def test_a_wrong_comparison_is_refused_by_its_key(
    tmp_path: Path, change: tuple[str, str], shown: str
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(GOOD.replace(*change), "utf-8")
    with pytest.raises(UsageError) as caught:
        read_recipe(path, Comparison)
    assert shown in caught.value.message
