"""``pasta evaluate frontier``: many points at once, from the files of their answers."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lab.tests.evaluate.records import write_records
from lab.tests.tasks.reading import plain
from tests.cli.conftest import Pasta

POINT = """
[[points]]
name = "{name}"
method = "{method}"
model = "models/{name}"
records = "{folder}/{name}.jsonl"
"""


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    write_records(tmp_path / "ours.jsonl")
    write_records(tmp_path / "theirs.jsonl", plain)
    path = tmp_path / "comparison.toml"
    points = [("ours", "PASTA"), ("theirs", "rule"), ("absent", "rule")]
    tables = [POINT.format(name=name, method=method, folder=tmp_path) for name, method in points]
    path.write_text('ours = "PASTA"\nbaseline = "base"\n' + "".join(tables), "utf-8")
    return path


def test_every_point_has_a_row_and_every_other_point_a_verdict(
    pasta: Pasta, comparison: Path
) -> None:
    result = pasta("evaluate", "frontier", comparison)
    assert (result.code, result.err) == (0, "")
    rows = {line.split()[0]: line for line in result.out.splitlines() if line[:1].isalpha()}
    assert "theoretical, realised" in rows["ours"]
    assert "not run: pasta-lab evaluate tasks --model models/absent" in rows["absent"]
    verdicts = [line.split() for line in result.out.splitlines() if line.startswith("theirs")]
    assert ["theirs", "theoretical", "better", "ours"] in [row[:2] + row[-2:] for row in verdicts]
    assert "simulated: 9 prompts of split test" in result.out


def test_published_figures_can_be_left_out(pasta: Pasta, comparison: Path) -> None:
    label = "published, Gemma 7B, AlpacaEval, not comparable"
    assert label in pasta("evaluate", "frontier", comparison).out
    assert label not in pasta("evaluate", "frontier", comparison, "--no-published").out
    found = pasta("evaluate", "frontier", comparison, "--json").json
    left = pasta("evaluate", "frontier", comparison, "--json", "--no-published").json
    assert len(found.pop("published")["points"]) == 9
    assert found == left


def test_json_is_one_object(pasta: Pasta, comparison: Path) -> None:
    found = pasta("evaluate", "frontier", comparison, "--json").json
    assert [one["name"] for one in found["points"]] == ["ours", "theirs"]
    assert {row["verdict"] for row in found["comparisons"]} <= {"better", "not separated"}


def test_the_command_of_a_missing_point_parses(pasta: Pasta, comparison: Path) -> None:
    (missing,) = pasta("evaluate", "frontier", comparison, "--json").json["not_run"]
    name, *arguments = shlex.split(missing["command"])
    assert name == "pasta-lab"
    assert pasta(*arguments, "--help").code == 0


def test_page_and_plot_are_written(pasta: Pasta, comparison: Path, tmp_path: Path) -> None:
    files = ("--page", tmp_path / "page.md", "--plot", tmp_path / "plot.svg")
    assert pasta("evaluate", "frontier", comparison, *files).code == 0
    assert (tmp_path / "page.md").read_text("utf-8").startswith("# Quality against speed\n")
    assert (tmp_path / "plot.svg").read_text("utf-8").startswith("<svg")


def test_a_missing_comparison_is_a_usage_error(pasta: Pasta, tmp_path: Path) -> None:
    result = pasta("evaluate", "frontier", tmp_path / "absent.toml")
    assert (result.code, result.out) == (2, "")
    assert "absent.toml cannot be read" in result.err
