"""Trials of stage two: the same rates for every method, after one round, on development prompts.

The rate of a method's recipe is the best of its trials by what stage two is to raise; no test
prompt has a say. They borrow the samples of round one, so they are carried out after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from plan import Plan
from table import cell, table

PAGE = "trials"
RATES = ("5e-5", "2e-4", "8e-4")
"""Learning rates, four times apart."""
WEIGHT = 4.0
"""The paper's lambda in all trials; sequential answers are told apart by grade alone."""


class Tried(NamedTuple):
    """A method whose rate is chosen."""

    method: str
    recipe: str
    run: str
    base: str
    strategy: str


TRIED = (
    Tried("Pasta-BoN", "pasta-bon-4", "pasta-bon-4", "pasta-noisy", "pasta"),
    Tried("APAR-BoN", "apar-bon-4", "apar-bon-4", "apar-noisy", "apar"),
    Tried("rule-pasta-BoN", "rule-pasta-bon-4", "rule-pasta-bon-4", "rule-pasta", "pasta"),
    Tried("Baseline-BoN", "baseline-bon", "baseline-bon", "baseline", "sequential"),
)


def trials(plan: Plan) -> None:
    """Lay out one round by each rate, and its answers to development prompts."""
    rates = RATES[:1] if plan.options.is_tiny else RATES
    plan.page(PAGE, "Rates of stage two, on development prompts", "seed-0/baseline", "dev")
    for tried in TRIED[:1] if plan.options.is_tiny else TRIED:
        for rate in rates:
            name = name_of(tried, rate)
            change = f"train.learning_rate={rate}"
            base, run = f"seed-0/{tried.base}", f"seed-0/{tried.run}"
            trained = plan.bon(
                f"{PAGE}/{name}", tried.recipe, 0, base, change, shares=run, rounds=1
            )
            plan.point(PAGE, trained, name, tried.method, rate, strategy=tried.strategy)


def name_of(tried: Tried, rate: str) -> str:
    """Return what a trial is called."""
    return f"{tried.run}-at-{rate}"


def chosen(points: Mapping[str, Mapping[str, Any]], rates: Mapping[str, float]) -> Iterator[str]:
    """Yield the section: what each rate gave, and which one the recipe has.

    Args:
        points: What the page says of each trial, by name.
        rates: By recipe, the rate that stands in it.
    """
    yield "## Trials: the rate of stage two"
    yield ""
    yield f"One round by each of {len(RATES)} rates, lambda {WEIGHT:g}, development prompts. Score:"
    yield f"theoretical speedup + {WEIGHT:g} x grade, as samples are scored; of sequential answers"
    yield "the grade alone. A recipe has the rate with the best score."
    yield ""
    rows = (
        _row(tried, rate, points[name], rates[tried.recipe])
        for tried in TRIED
        for rate in RATES
        if (name := name_of(tried, rate)) in points
    )
    yield from table(("run", "rate", "grade", "theoretical speedup", "score", ""), rows)


def _row(tried: Tried, rate: str, point: Mapping[str, Any], taken: float) -> Iterator[str]:
    yield tried.run
    yield rate
    yield cell(point["quality"])
    yield cell(point["theoretical_speedup"])
    yield f"{score(tried, point):.3f}"
    yield "taken" if float(rate) == taken else ""


def score(tried: Tried, point: Mapping[str, Any]) -> float:
    """Return what a trial is worth."""
    grade: float = point["quality"]["mean"]
    if tried.strategy == "sequential":
        return grade
    fast: float = point["theoretical_speedup"]["mean"]
    return fast + WEIGHT * grade
