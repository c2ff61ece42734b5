"""The page and the plot of a comparison are complete and show the figures of the report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from lab.tests.evaluate.records import write_records
from pasta_lab.evaluate.figures import Span, frontier_plot, point_place
from pasta_lab.evaluate.frontier import report
from pasta_lab.evaluate.pages import LABEL, frontier_page, published
from pasta_lab.evaluate.points import Comparison, Point, read_points
from pasta_lab.evaluate.records import read_answers, write_answers
from pasta_lm.errors import InputError

EVIL = "<script>alert(1)|</script>"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Return two points that were run, one whose answers mean harm, and one that was not run."""
    folder = tmp_path_factory.mktemp("records")
    write_records(folder / "perfect.jsonl")
    rows = read_answers(folder / "perfect.jsonl")
    harm = [
        replace(row, program=EVIL, text=row.text * 2) if row.strategy == "pasta" else row
        for row in rows
    ]
    write_answers(folder / "harm.jsonl", harm)
    points = tuple(
        Point(
            name=name, method=method, model=name, records=str(folder / f"{name}.jsonl"), label=label
        )
        for name, method, label in (
            ("perfect", "PASTA", "4"),
            ("harm", "<b>", "&"),
            ("absent", "x", ""),
        )
    )
    return Comparison(points=points, ours="PASTA", baseline="base")


@pytest.fixture(scope="module")
def found(comparison: Comparison) -> dict[str, Any]:
    return report(comparison, read_points(comparison))


def test_the_page_is_valid_markdown_without_links(found: dict[str, Any]) -> None:
    page = frontier_page(found)
    assert "<script" not in page
    assert "://" not in page
    for table in page.split("\n\n"):  # all rows of a table have as many cells as its header
        lines = [line for line in table.splitlines() if line.startswith("|")]
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in lines if "not run" not in line}
        assert len(counts) <= 1


def test_the_page_has_kinds_figures_and_missing_points(found: dict[str, Any]) -> None:
    page = frontier_page(found | {"published": published()})
    assert "simulated: 9 prompts" in page
    assert "| absent | not run: pasta-lab evaluate tasks --model absent" in page
    assert "| ! 2.0" in page
    assert "not separated" in page
    assert page.count("\n| takings, ") == 2  # a row for each point of every family
    assert LABEL in page


def test_the_plot_is_a_file_of_svg_with_a_mark_for_each_point(found: dict[str, Any]) -> None:
    root = ElementTree.fromstring(frontier_plot(found))
    title, description, *_ = root
    assert root.tag.endswith("svg")
    assert [one.split(" (")[0] for one in (description.text or "").split("; ")] == [
        "perfect",
        "harm: its length is unusual",
    ]
    assert "realised" in (title.text or "")


def test_a_plot_of_nothing_is_refused(comparison: Comparison) -> None:
    with pytest.raises(InputError, match="no point was run"):
        frontier_plot(report(comparison, []))


def test_the_vertical_bar_is_the_interval_of_the_difference() -> None:
    point = {
        "name": "one",
        "method": "one",
        "label": "4",
        "realised_speedup": as_figure([1.0, 1.5, 2.0]),
        "quality": as_figure([0.4, 0.5, 0.6]),
        "quality_difference": as_figure([-0.2, 0.1, 0.15]),
        "is_length_unusual": False,
    }
    place = point_place(point, "realised_speedup")
    assert place.x == Span(1.5, 1.0, 2.0)
    assert place.y == pytest.approx((0.5, 0.2, 0.55))


def as_figure(values: Sequence[float]) -> dict[str, float]:
    return dict(zip(("low", "mean", "high"), values, strict=True))
