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
BEFORE = "before"
"""The finetuning itself, beside its trials."""


class Setting(NamedTuple):
    """What a trial has that its recipe may not have."""

    alpha: float
    """Weight of the likelihood of the best sample; 1 is nothing else."""
    rate: float
    """Learning rate."""
    pairs: int
    """The most of one prompt."""


SETTINGS = {
    "pair": Setting(0.005, 5e-5, 1),
    "best": Setting(1.0, 2e-4, 1),
    "best four": Setting(1.0, 4e-4, 4),
}
"""BoNBoN's own alpha; the best sample of a prompt alone; the four best of it."""


class Tried(NamedTuple):
    """A method whose setting is chosen."""

    method: str
    recipe: str
    """Its run has the same name, and lends its samples."""
    base: str
    strategy: str

    def trial(self, setting: str) -> str:
        """Return what a trial is called."""
        return f"{self.recipe}-{setting.replace(' ', '-')}"


TRIED = (
    Tried("Pasta-BoN", "pasta-bon-4", "pasta-noisy", "pasta"),
    Tried("APAR-BoN", "apar-bon-4", "apar-noisy", "apar"),
    Tried("rule-pasta-BoN", "rule-pasta-bon-4", "rule-pasta", "pasta"),
    Tried("Baseline-BoN", "baseline-bon", "baseline", "pasta"),  # without tags it forks nothing
)


def trials(plan: Plan) -> None:
    """Lay out one round by each setting, and its answers to development prompts."""
    few = 1 if plan.options.is_tiny else None
    plan.page(PAGE, "Settings of stage two, on development prompts", "seed-0/baseline", "dev")
    for tried in TRIED[:few]:
        base, strategy = f"seed-0/{tried.base}", tried.strategy
        plan.point(PAGE, base, tried.trial(BEFORE), tried.method, BEFORE, strategy=strategy)
        for name, setting in list(SETTINGS.items())[:few]:
            trial = tried.trial(name)
            changes = (
                f"loss.alpha={setting.alpha}",
                f"train.learning_rate={setting.rate}",
                f"score.pairs={setting.pairs}",
            )
            run, shares = f"{PAGE}/{trial}", f"seed-0/{tried.recipe}"
            plan.bon(run, tried.recipe, 0, base, *changes, shares=shares, rounds=1)
            plan.point(PAGE, run, trial, tried.method, name, strategy=strategy)


def chosen(points: Mapping[str, Mapping[str, Any]], taken: Mapping[str, Setting]) -> Iterator[str]:
    """Yield the section: what each setting gave, and which one the recipe has.

    Args:
        points: What the page says of each trial, by name.
        taken: By recipe, the setting that stands in it.
    """
    yield "## Trials: the setting of stage two"
    yield ""
    yield "One round, lambda 4, on development prompts. A recipe has the setting with the highest"
    yield "grade of those that raise parallelism."
    yield ""
    rows = (
        (tried.recipe, name, *_figures(points[trial], SETTINGS.get(name), taken[tried.recipe]))
        for tried in TRIED
        for name in (BEFORE, *SETTINGS)
        if (trial := tried.trial(name)) in points
    )
    yield from table(("run", "setting", "alpha", "rate", "pairs", "grade", "parallelism", ""), rows)


def _figures(point: Mapping[str, Any], setting: Setting | None, taken: Setting) -> Iterator[str]:
    yield from (f"{number:g}" for number in setting) if setting else "---"
    yield cell(point["quality"])
    yield cell(point["parallelism"])
    yield "taken" if setting == taken else ""
