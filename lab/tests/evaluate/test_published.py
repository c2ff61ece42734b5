"""The paper's figures as reference points."""

from __future__ import annotations

from pasta_lab.evaluate.pages import published

KEYS = ("win_rate", "realised_speedup", "theoretical_speedup")


def test_the_published_figures_are_those_of_the_paper() -> None:
    points = published()["points"]
    found = {point["name"]: tuple(point[key] for key in KEYS) for point in points}
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
