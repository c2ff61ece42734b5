"""The paper's figures as reference points."""

from __future__ import annotations

from xml.etree import ElementTree

from pasta_lab.evaluate.figures import speed_figures
from pasta_lab.evaluate.pages import LABEL, PUBLISHED

NO_CLOCK = {"realised_speedup": None, "theoretical_speedup": None}
TABLE = {"ours": NO_CLOCK | {"realised_speedup": {"mean": 2.0, "low": 1.9, "high": 2.1}}}
RATES = {"ours": {"win_rate": 45.0, "standard_error": 1.0}}


def test_the_published_figures_are_those_of_the_paper() -> None:
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


def test_figure_4_shows_published_points_only_on_request() -> None:
    whole, alone = (
        speed_figures(TABLE, RATES, with_published=shown)["figure-4"] for shown in (True, False)
    )
    for picture, num_published in ((whole, len(PUBLISHED)), (alone, 0)):
        ids = [one.get("id", "") for one in ElementTree.fromstring(picture).iter()]
        assert sum(one.startswith("published-") for one in ids) == num_published
        assert sum(one.startswith("points-") for one in ids) == 1
    assert LABEL in whole
    assert LABEL not in alone
    for one in PUBLISHED:
        assert f"{one.name} ({one.realised_speedup:.2f}, {one.win_rate:.1f})" in whole
