"""The page and the plot: well-formed, complete without the net, and true to the figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.errors import InputError
from pasta_lm.evaluate import lanes, plot
from pasta_lm.evaluate.answered import read_answers, write_answers
from pasta_lm.evaluate.comparison import Comparison, Point
from pasta_lm.evaluate.frontier import report
from pasta_lm.evaluate.measured import measure
from pasta_lm.evaluate.page import page, svg
from pasta_lm.evaluate.published import LABEL, published
from pasta_lm.language.document import parse
from pasta_lm.tasks import make
from tests.evaluate.records import write_records

SVG = "{http://www.w3.org/2000/svg}"
SHAPES = ("rect", "path", "circle")
EVIL = "<script>alert(1)</script>"
VOID = {"meta", "br"}


class Balance(HTMLParser):
    """Counts on every tag being closed where it should."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


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
def html(comparison: Comparison) -> str:
    measured = measure(comparison)
    return page(report(comparison, measured), measured, num_shown=1)


def test_the_page_is_well_formed_and_needs_nothing_beside_it(html: str) -> None:
    parser = Balance()
    parser.feed(html)
    assert not parser.open
    assert "<script" not in html
    assert not re.findall(r"(?:src|href)=", html)
    assert {*re.findall(r"https?://[^\"<]*", html)} == {"http://www.w3.org/2000/svg"}


def test_what_a_model_wrote_is_shown_and_harmless(html: str) -> None:
    assert EVIL not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    parser = Balance()
    parser.feed(html)
    shown = "".join(parser.text)
    assert make("takings", "test", 0).prompt in shown
    assert EVIL in shown


def test_the_page_has_every_figure_with_its_kind_and_what_was_not_run(html: str) -> None:
    text = " ".join(html.split())
    assert "kind: simulated" in text
    assert "not run: <code>pasta evaluate tasks --model absent" in text
    assert '<span class="flag">! 2.0' in text
    assert "not separated" in text
    assert text.count("Threads over") == 2 * 3  # both points, the first prompt of three families


def test_what_the_paper_reports_is_labelled_and_enters_no_figure_of_ours(
    comparison: Comparison, html: str
) -> None:
    measured = measure(comparison)
    found = report(comparison, measured) | {"published": published()}
    whole = page(found, measured, num_shown=1)
    parser = Balance()
    parser.feed(whole)
    assert not parser.open
    assert LABEL in whole
    assert LABEL not in html
    start, end = whole.index("<h2>What the paper reports"), whole.index("<h2>Families")
    assert whole[:start] + whole[end:] == html


def test_the_plot_is_a_file_of_svg_with_a_mark_for_each_point(comparison: Comparison) -> None:
    found = report(comparison, measure(comparison))
    root = ElementTree.fromstring(svg(found))
    assert root.tag.endswith("svg")
    groups = [one for one in root.iter() if one.get("class") == "point"]
    assert [next(iter(one)).text for one in groups] == ["perfect", "harm: its length is unusual"]
    assert "realised" in next(iter(root)).text  # type: ignore[operator]


def test_a_plot_of_nothing_is_refused(comparison: Comparison) -> None:
    with pytest.raises(InputError, match="no point was run"):
        svg(report(comparison, []))


def as_figure(values: Sequence[float]) -> dict[str, float]:
    return dict(zip(("low", "mean", "high"), values, strict=True))


figure = st.lists(st.floats(0.2, 3.0), min_size=3, max_size=3).map(sorted)


@given(st.lists(st.tuples(figure, figure), min_size=1, max_size=8))
def test_every_mark_lies_in_the_frame_faster_to_the_right_and_better_above(
    drawn: list[tuple[list[float], list[float]]],
) -> None:
    points = [
        {
            "name": str(index),
            "method": "one",
            "label": "",
            "theoretical_speedup": as_figure(fast),
            "quality": as_figure(good),
            "quality_difference": as_figure([one - good[1] for one in good]),
            "on_frontier": {"theoretical": True},
            "is_length_unusual": False,
            "is_bound": False,
        }
        for index, (fast, good) in enumerate(drawn)
    ]
    found = plot.plot({"points": points, "kinds": ["simulated"]}, "theoretical")
    assert found is not None
    (line,) = found.lines
    for mark in line.marks:
        assert plot.LEFT <= mark.left <= mark.x <= mark.right <= plot.WIDTH - plot.RIGHT
        assert plot.TOP <= mark.top <= mark.y <= mark.bottom <= plot.HEIGHT - plot.BOTTOM
    by_speed = sorted(line.marks, key=lambda mark: drawn[int(mark.name)][0][1])
    assert [mark.x for mark in by_speed] == sorted(mark.x for mark in by_speed)
    by_grade = sorted(line.marks, key=lambda mark: drawn[int(mark.name)][1][1])
    assert [mark.y for mark in by_grade] == sorted((m.y for m in by_grade), reverse=True)
    for axis in (found.x, found.y):
        assert 2 <= len(axis.steps()) <= plot.NUM_STEPS + 2
        for place, number in axis.steps():
            assert place == pytest.approx(axis.place(float(number)), abs=1.5)


def test_ten_methods_have_ten_marks_that_are_drawn_differently() -> None:
    point = {
        "label": "",
        "theoretical_speedup": as_figure([1.0, 1.5, 2.0]),
        "realised_speedup": None,
        "quality": as_figure([0.4, 0.5, 0.6]),
        "quality_difference": as_figure([-0.2, 0.1, 0.15]),
        "on_frontier": {"theoretical": True},
        "is_length_unusual": False,
        "is_bound": False,
    }
    points = [point | {"name": str(i), "method": f"method {i}"} for i in range(10)]
    found = plot.plot({"points": points, "kinds": ["simulated"]}, "theoretical")
    assert found is not None
    mark = found.lines[0].marks[0]
    assert mark.y == found.y.place(0.5)
    assert (mark.bottom, mark.top) == (found.y.place(0.2), found.y.place(0.55))  # of the difference
    drawn = ElementTree.fromstring(svg({"points": points, "kinds": ["simulated"]}))
    lines = [group for group in drawn.iter(f"{SVG}g") if group.get("class") == "method"]
    legend = [[c for c in line if c.tag.removeprefix(SVG) in SHAPES][-1] for line in lines]
    assert len({_outline(one) for one in legend}) == len(points)


def _outline(shape: ElementTree.Element) -> str:
    """Return what a mark looks like, wherever it stands and whatever its colour."""
    path = re.sub(r"^M[\d.]+ [\d.]+", "", shape.get("d", ""))
    sizes = [shape.get(key, "") for key in ("width", "r", "fill", "stroke-width")]
    return " ".join((shape.tag, path, *sizes))


def test_lanes_cover_the_steps_in_which_each_thread_was_fed() -> None:
    written = (
        'Two: <promise topic="a" tokens="1"/><async>one two three</async> '
        '<promise topic="b" tokens="1"/><async>four</async><sync/> and more'
    )
    trace = ScriptedEngine(parse(written)).answer().trace
    found = lanes.picture(trace)
    assert [lane.label for lane in found.lanes] == ["main", "1 a", "2 b"]
    assert found.lanes[1].text == "one two three"
    assert len(found.syncs) == 1
    assert found.height == 3 * lanes.LANE_HEIGHT
    scale = lanes.WIDTH / trace.forward_passes
    for lane, thread in zip(found.lanes, trace.threads, strict=True):
        fed = {token.fed_step for token in trace.tokens_of(thread.id)} - {None}
        width = sum(part.width for part in lane.stretches)
        assert width == pytest.approx(len(fed) * scale, abs=0.1 * len(lane.stretches))
        assert all(
            part.x >= 0 and part.x + part.width <= lanes.WIDTH + 0.2 for part in lane.stretches
        )
    assert len(found.lanes[0].stretches) == 2  # it waited at the sync
