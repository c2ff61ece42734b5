"""The report of the comparison: which point stands for us over all seeds, and what it says."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from lab.tests.evaluate.records import write_records
from pasta_lab.evaluate.points import (
    Comparison,
    Point,
    PointAnswers,
    Speed,
    pair,
    pair_over,
    read_points,
)
from pasta_lab.evaluate.records import GradedAnswer, read_answers, write_answers

ROOT = Path(__file__).parents[3]
RIVAL = "APAR-BoN, lambda 4"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[GradedAnswer]:
    """Return the answers of a model whose forks are the true ones."""
    path = tmp_path_factory.mktemp("records") / "gold.jsonl"
    write_records(path)
    return read_answers(path)


def measured(
    folder: Path, rows: list[GradedAnswer], **grades: list[float]
) -> dict[str, PointAnswers]:
    """Return points with these grades, in turn over the prompts, and otherwise the same answers."""
    points = []
    for name, values in grades.items():
        ours = [one for one in rows if one.strategy == "pasta"]
        graded = {
            (one.task_id, one.wall_s is None): replace(one, grade=values[i % len(values)])
            for i, one in enumerate(ours)
        }
        changed = [
            graded[one.task_id, one.wall_s is None] if one.strategy == "pasta" else one
            for one in rows
        ]
        write_answers(folder / f"{name}.jsonl", changed)
        points.append(
            Point(name=name, method=name, model=name, records=str(folder / f"{name}.jsonl"))
        )
    found = read_points(Comparison(points=tuple(points), ours=points[0].name, baseline="b"))
    return {one.point.name: one for one in found}


def test_the_same_seed_twice_is_that_seed(tmp_path: Path, rows: list[GradedAnswer]) -> None:
    points = measured(tmp_path, rows, ours=[1.0, 0.5], rival=[0.5, 0.75, 0.0])
    both = points["ours"], points["rival"]
    for kind in Speed:
        assert pair_over([both, both], kind) == pair(*both, kind)
    assert pair_over([], Speed.THEORETICAL) is None


def test_seeds_that_disagree_are_averaged_by_prompt(
    tmp_path: Path, rows: list[GradedAnswer]
) -> None:
    points = measured(tmp_path, rows, up=[1.0], middle=[0.5], down=[0.0])
    up, middle, down = points.values()
    found = pair_over([(up, middle), (down, middle)], Speed.THEORETICAL)
    assert found is not None
    assert (found.quality.mean, found.quality.low, found.quality.high) == (0, 0, 0)


def test_one_point_of_ours_has_to_do_for_all_seeds(
    paper: dict[str, Any], tmp_path: Path, rows: list[GradedAnswer]
) -> None:
    seeds = {}
    for seed, grades in enumerate(({"a": 1.0, "b": 0.8}, {"a": 0.2, "b": 0.8})):
        folder = tmp_path / str(seed)
        folder.mkdir()
        one = {name: [grade] for name, grade in grades.items()}
        seeds[seed] = measured(folder, rows, **one, rival=[0.5])
    best = paper["headline"]._best(seeds, ["a", "b"], "rival", Speed.THEORETICAL)
    assert best.name == "b"  # a wins by more, once
    assert {pairing.verdict.value for pairing in best.by_seed.values()} == {"better"}
    row = [*paper["headline"]._row(seeds, ["a", "b"], "rival", Speed.THEORETICAL, {"b"})]
    assert row[:5] == ["rival", "theoretical", "! b", "better", "better"]
    assert row[5].startswith("0.300 [")
    assert row[-1] == "better"


def test_what_a_seed_lacks_is_said(
    paper: dict[str, Any], tmp_path: Path, rows: list[GradedAnswer]
) -> None:
    untimed = [one for one in rows if one.wall_s is None]
    seeds = {0: measured(tmp_path, untimed, ours=[1.0], rival=[0.5]), 1: {}}
    rows_of = {
        kind: [*paper["headline"]._row(seeds, ["ours"], "rival", kind, set())] for kind in Speed
    }
    assert rows_of[Speed.THEORETICAL][3:5] == ["better", "not run"]
    assert rows_of[Speed.THEORETICAL][-1] == "better (1 of 2 seeds)"
    assert rows_of[Speed.REALISED][2:5] == ["-", "not timed", "not run"]
    assert rows_of[Speed.REALISED][-1] == "not timed (0 of 2 seeds)"


def test_a_stage_is_held_against_the_finetuning_by_prompt(
    paper: dict[str, Any], tmp_path: Path
) -> None:
    points = []
    last = list(paper["stages"].STAGES)[-1]
    for name, annotator in ((paper["stages"].SFT, "always_fork"), (last, "gold")):
        path = tmp_path / f"{annotator}.jsonl"
        write_records(path, annotator)
        points.append(Point(name=name, method=name, model="m", records=str(path)))
    found = read_points(Comparison(points=tuple(points), ours=last, baseline="b"))
    answers = {one.point.name: one for one in found}
    stage, precision, speed, *_, both = paper["stages"]._gains(answers, last)
    assert stage == "round two"
    assert float(precision.split()[0]) > 0  # a chain was forked before, and is not now
    assert float(speed.split()[0]) < 1
    assert both == "**no**"
    assert [*paper["stages"]._gains({}, last)][1:] == ["not run"] * 4


def test_rounds_cover_an_area_that_grows_and_has_an_interval(
    paper: dict[str, Any],
    tmp_path: Path,
    rows: list[GradedAnswer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    plan = paper["pages"].read_plan(paper["plan"].Options(out=tmp_path, base="some/base"))
    names = {"rounds: 1": [0.4, 0.2, 0.0], "rounds: 2": [0.6, 0.5, 0.4], "rounds: 4": [0.3]}
    answers = measured(tmp_path, rows, **names)
    figure = {"mean": 0.5, "low": 0.4, "high": 0.6}
    points = {name: {"quality": figure, "theoretical_speedup": figure} for name in names}
    for number, steps in ((1, 30), (2, 32), (3, 34)):
        log = tmp_path / "seed-0" / "pasta-bon-4" / f"round-{number}" / "log.jsonl"
        log.parent.mkdir(parents=True)
        log.write_text(f'{{"step": 5}}\n{{"step": {steps}}}\n{{"loss": 1.0}}\n', "utf-8")
    section = [*paper["rounds"].rounds(plan, points, answers)]
    table = [line.strip("| ").split(" | ") for line in section if line.startswith("| ")][1:]
    table = [row for row in table if not row[0].startswith("-")]
    assert [row[:2] for row in table] == [
        ["1", "30"],
        ["2", "62"],
        ["3", "not run"],
        ["4", "not run"],
    ]
    for name, row in (("rounds: 1", table[0]), ("rounds: 2", table[1])):
        one = answers[name]
        logs, grades = one.log_speed(Speed.THEORETICAL).values(), one.answers.values()
        fast, good = exp(fmean(logs)), fmean(answer.grade for answer in grades)
        area, low, high = (float(word.strip("[],")) for word in row[-1].split())
        assert area == pytest.approx((fast - 1) * good, abs=6e-4)
        assert low < area < high


def test_a_report_of_nothing_says_the_budget_and_how_to_run_all(
    paper: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    options = paper["plan"].Options(
        out=tmp_path, base="some/base", num_prompts=840, num_sampled=300
    )
    plan = paper["pages"].read_plan(options)
    paper["report"].write_report(tmp_path / "report.md", plan)
    text = (tmp_path / "report.md").read_text("utf-8")
    for said in (
        "- Finetuning of the base: 800 steps",
        "2 rounds of 300 prompts",
        "840 test prompts",
        "as many for every method",
        f"| {RIVAL} | theoretical | - | not run | not run | not run | - | - | not run (0 of 3",
        "- length in digits: not run: ",
        "APAR-SFT, own rules: not run: `runs/paper-small.sh --only seed-0/measure/apar`",
        "SoT, prompted: not run: `runs/paper-small.sh --only seed-0/measure/baseline-sot`",
    ):
        assert said in text


def test_the_trials_say_what_each_setting_gave_and_which_one_the_recipe_has(
    paper: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    pages, report = paper["pages"], paper["report"]
    plan = pages.read_plan(paper["plan"].Options(out=tmp_path, base="some/base"))
    grades = {"before": 0.80, "pair": 0.70, "best": 0.75, "best-four": 0.74}
    points = {
        pages.trial_name(recipe, name): {
            "quality": {"mean": grade, "low": grade, "high": grade},
            "parallelism": {"mean": 1.5, "low": 1.4, "high": 1.6},
        }
        for recipe in pages.RECIPES
        for name, grade in grades.items()
    }
    monkeypatch.setattr(report, "_setting", lambda recipe: [1.0, 2e-4, 1])
    rows = [line for line in report._trials(plan, points) if line.startswith("|")][2:]
    assert len(rows) == 16
    assert [row for row in rows if "taken" in row] == [row for row in rows if "| best |" in row]
