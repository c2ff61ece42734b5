"""The paper's figures stand beside ours under their label, and enter nothing of ours."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from pasta_lm.evaluate.figures import Point, Span
from pasta_lm.evaluate.paper_figures import figure_4, paper_figures
from pasta_lm.evaluate.published import LABEL, PUBLISHED, Published, published, reference_points

OURS = Point("ours", Span(2.0, 1.9, 2.1), Span(45.0, 43.0, 47.0))


def test_the_figures_are_those_of_the_paper() -> None:
    found = {
        one.name: (one.win_rate, one.realised_speedup, one.theoretical_speedup) for one in PUBLISHED
    }
    assert found == {
        "baseline": (50, 1, 1),
        "Pasta-SFT": (32.7, 1.31, 1.9),
        "Pasta-BoN, quality alone": (52.3, 1.21, 1.4),
        "Pasta-BoN, 8": (48.7, 1.46, 1.78),
        "Pasta-BoN, 4": (47.5, 1.54, 1.9),
        "Pasta-BoN, 2": (45.5, 1.62, 2.08),
        "Pasta-BoN, 1": (42.9, 1.93, 2.44),
        "APAR": (41.2, 1.6, 1.79),
        "SoT": (38.4, 0.73, 0.9),
    }


@pytest.mark.parametrize(
    "one", [one for one in PUBLISHED if one.efficiency], ids=lambda one: one.name
)
def test_what_the_paper_calls_their_ratio_is_their_ratio(one: Published) -> None:
    assert one.efficiency == pytest.approx(one.realised_speedup / one.theoretical_speedup, abs=0.01)


def test_every_figure_names_its_source_and_all_carry_the_label() -> None:
    found = published()
    assert all("2502.11517" in one["source"] for one in found["points"])
    assert "Gemma 7B, AlpacaEval, not comparable with ours unless judge" in found["label"]


def marks(picture: str) -> tuple[int, int]:
    """Return how many points were measured and how many are only quoted, the key left out."""
    root = ElementTree.fromstring(picture)
    hollow = [one for one in root.iter() if one.get("class") == "published"]
    round_ones = [one for one in root.iter() if one.tag.endswith("circle")]
    return len(round_ones), max(len(hollow) - 1, 0)


def test_in_figure_4_they_are_hollow_and_labelled_and_can_be_left_out() -> None:
    whole, alone = (figure_4([OURS], with_published=shown) for shown in (True, False))
    assert marks(whole) == (1, len(PUBLISHED))
    assert marks(alone) == (1, 0)
    assert LABEL in whole
    assert LABEL not in alone
    for one in reference_points():
        assert f"{one.name} ({one.x.mean:.2f}, {one.y.mean:.1f})" in whole


def test_every_quoted_point_lies_in_the_frame() -> None:
    places = re.findall(
        r'class="published" x="([\d.]+)" y="([\d.]+)"', figure_4([OURS], with_published=True)
    )
    assert len(places) == len(PUBLISHED) + 1
    assert all(50 < float(x) < 640 and 0 < float(y) < 360 for x, y in places)


def test_where_nothing_was_judged_there_is_no_figure_4_of_quotations_alone() -> None:
    figures = {"realised_speedup": None, "theoretical_speedup": None}
    assert "figure-4" not in paper_figures({"ours": figures}, None, with_published=True)
