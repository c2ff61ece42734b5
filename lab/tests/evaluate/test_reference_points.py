"""Reference points for speedups: gold forks, speculative decoding, other model shapes."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from lab.tests.evaluate.records import FAMILIES, answers, tasks, write_records
from pasta_lab.evaluate.figures import frontier_plot
from pasta_lab.evaluate.frontier import report
from pasta_lab.evaluate.pages import frontier_page
from pasta_lab.evaluate.points import (
    Comparison,
    Point,
    Speed,
    read_points,
)
from pasta_lab.evaluate.records import PERFECT, read_answers, write_answers


def point(folder: Path, name: str, method: str = "PASTA", **changes: Any) -> Point:
    usual = {"name": name, "method": method, "model": name, "records": str(folder / "a.jsonl")}
    return Point(**{**usual, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a model without syncs left answers, with all that was decoded beside them."""
    folder = tmp_path_factory.mktemp("records")
    write_records(folder / "a.jsonl", "noisy", num_timed=2)
    rows = read_answers(folder / "a.jsonl")
    perfect = [
        replace(one, kind="replayed") for one in answers(tasks(2), "gold", PERFECT, is_timed=True)
    ]
    plain = [one for one in rows if one.strategy == "sequential"]
    sped_up = [
        replace(one, strategy="prompt-lookup", wall_s=one.wall_s and one.wall_s / 1.5)
        for one in plain
    ]
    write_answers(folder / "a.jsonl", [*rows, *perfect, *sped_up])
    return folder


@pytest.fixture(scope="module")
def comparison(folder: Path) -> Comparison:
    return Comparison(
        points=(
            point(folder, "perfect forks", "bound", strategy=PERFECT),
            point(folder, "ours"),
            point(folder, "plain", "sequential", strategy="sequential"),
            point(folder, "lookup", "sequential", strategy="prompt-lookup"),
        ),
        ours="PASTA",
        baseline="base",
    )


@pytest.fixture(scope="module")
def found(comparison: Comparison) -> dict[str, Any]:
    return report(comparison, read_points(comparison))


def figures(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(dict(one) for one in found["points"] if one["name"] == name)


def test_a_bound_has_a_speed_over_the_timed_prompts_and_no_quality(found: dict[str, Any]) -> None:
    bound = figures(found, "perfect forks")
    assert (bound["is_bound"], bound["kind"], bound["quality"]) == (True, "replayed", None)
    assert bound["num_prompts"] == bound["num_timed"] == 2 * len(FAMILIES)
    assert bound["theoretical_speedup"]["mean"] > 1.2
    assert bound["fork_precision"]["mean"] == bound["fork_recall"]["mean"] == 1
    assert not any(bound["on_frontier"].values())
    assert "perfect forks" not in {row["rival"] for row in found["comparisons"]}
    assert found["kinds"] == ["simulated"]
    assert found["num_prompts"] == 3 * len(FAMILIES)


def test_the_fraction_of_perfect_forks_is_over_the_same_prompts(
    comparison: Comparison, found: dict[str, Any]
) -> None:
    share = figures(found, "ours")["of_perfect_forks"]
    (bound, ours, *_) = read_points(comparison)
    best, own = (one.log_speed(Speed.THEORETICAL) for one in (bound, ours))
    assert share["num_prompts"] == len(best) == 2 * len(FAMILIES)
    expected = exp(fmean(own[name] - best[name] for name in best))
    assert share["theoretical"]["mean"] == pytest.approx(expected, abs=1e-5)
    assert share["realised"]["mean"] > 0
    assert figures(found, "perfect forks")["of_perfect_forks"] is None


def test_speed_is_also_given_over_the_fastest_sequential_decoding(found: dict[str, Any]) -> None:
    assert found["fastest_sequential"] == "lookup"
    over = {one["name"]: one["over_fastest_sequential"]["mean"] for one in found["points"]}
    assert over["lookup"] == 1
    assert over["plain"] == pytest.approx(1 / 1.5, abs=1e-5)
    realised = figures(found, "ours")["realised_speedup"]["mean"]
    assert over["ours"] == pytest.approx(realised / 1.5, abs=1e-4)


def test_speculative_strategies_have_no_theoretical_speedup(comparison: Comparison) -> None:
    """A pass checks several guesses and a draft's passes are not counted: paths say nothing."""
    found = report(comparison, read_points(comparison))
    lookup = next(one for one in found["points"] if one["name"] == "lookup")
    assert lookup["theoretical_speedup"] is None
    assert lookup["realised_speedup"]["mean"] == pytest.approx(1.5)
    assert lookup["of_perfect_forks"]["theoretical"] is None
    assert lookup["of_perfect_forks"]["realised"]["mean"] > 0
    assert lookup["on_frontier"]["theoretical"] is False
    assert {row["speed"] for row in found["comparisons"] if row["rival"] == "lookup"} == {
        "realised"
    }


def test_the_page_and_the_plot_show_bounds(found: dict[str, Any]) -> None:
    text = frontier_page(found)
    assert "| perfect forks | replayed | - |" in text
    assert "The fastest sequential decoding: lookup" in text
    drawn = frontier_plot(found)
    assert drawn.count('id="bound-') == 1
    assert ">perfect forks<" in drawn
