"""Trials of stage two: the same settings for every method, after one round, on development prompts.

The setting of a method's recipe is the best of its trials by what stage two is to raise; no test
prompt has a say. They borrow the samples of round one, so they are carried out after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from plan import Plan
from table import cell, table

PAGE = "trials"
WEIGHT = 4.0
"""The paper's lambda in all trials; sequential answers are told apart by grade alone."""


class Setting(NamedTuple):
    """What a trial has that its recipe may not have."""

    alpha: float
    """Weight of the likelihood of the best sample; 1 is nothing else."""
    rate: float
    """Learning rate."""


SETTINGS = {
    "pairs": Setting(0.005, 5e-5),
    "both": Setting(0.98, 1e-4),
    "best": Setting(1.0, 2e-4),
}
"""BoNBoN's own alpha; one that lets both terms pull alike at the outset; the best samples alone."""


class Tried(NamedTuple):
    """A method whose setting is chosen."""

    method: str
    recipe: str
    base: str
    strategy: str

    @property
    def run(self) -> str:
        """Return the run of stage two whose samples are borrowed, and whose setting it is."""
        return self.recipe

    def trial(self, setting: str) -> str:
        """Return what a trial is called."""
        return f"{self.recipe}-{setting}"


TRIED = (
    Tried("Pasta-BoN", "pasta-bon-4", "pasta-noisy", "pasta"),
    Tried("APAR-BoN", "apar-bon-4", "apar-noisy", "apar"),
    Tried("rule-pasta-BoN", "rule-pasta-bon-4", "rule-pasta", "pasta"),
    Tried("Baseline-BoN", "baseline-bon", "baseline", "sequential"),
)


def trials(plan: Plan) -> None:
    """Lay out one round by each setting, and its answers to development prompts."""
    few = 1 if plan.options.is_tiny else None
    plan.page(PAGE, "Settings of stage two, on development prompts", "seed-0/baseline", "dev")
    for tried in TRIED[:few]:
        for name, setting in list(SETTINGS.items())[:few]:
            changes = (f"loss.alpha={setting.alpha}", f"train.learning_rate={setting.rate}")
            trained = plan.bon(
                f"{PAGE}/{tried.trial(name)}",
                tried.recipe,
                0,
                f"seed-0/{tried.base}",
                *changes,
                shares=f"seed-0/{tried.run}",
                rounds=1,
            )
            plan.point(
                PAGE, trained, tried.trial(name), tried.method, name, strategy=tried.strategy
            )


def chosen(points: Mapping[str, Mapping[str, Any]], taken: Mapping[str, Setting]) -> Iterator[str]:
    """Yield the section: what each setting gave, and which one the recipe has.

    Args:
        points: What the page says of each trial, by name.
        taken: By recipe, the setting that stands in it.
    """
    yield "## Trials: the setting of stage two"
    yield ""
    yield f"One round by each of {len(SETTINGS)} settings, lambda {WEIGHT:g}, on development"
    yield f"prompts. Score: parallelism + {WEIGHT:g} x grade; of sequential answers the grade"
    yield "alone. A recipe has the setting with the best score."
    yield ""
    header = ("run", "setting", "alpha", "rate", "grade", "parallelism", "score", "")
    rows = (
        _row(tried, name, points[trial], taken[tried.recipe])
        for tried in TRIED
        for name in SETTINGS
        if (trial := tried.trial(name)) in points
    )
    yield from table(header, rows)


def _row(tried: Tried, name: str, point: Mapping[str, Any], taken: Setting) -> Iterator[str]:
    setting = SETTINGS[name]
    yield from (tried.run, name, f"{setting.alpha:g}", f"{setting.rate:g}")
    yield cell(point["quality"])
    yield cell(point["parallelism"])
    yield f"{score(tried, point):.3f}"
    yield "taken" if setting == taken else ""


def score(tried: Tried, point: Mapping[str, Any]) -> float:
    """Return what a trial is worth."""
    grade: float = point["quality"]["mean"]
    if tried.strategy == "sequential":
        return grade
    beside: float = point["parallelism"]["mean"]
    return beside + WEIGHT * grade
