"""The aims for a taught model on instructions, fixed before the first reported training.

Each is held against one figure of the report. An aim is met if the estimate is on its side, and
clearly met if the whole interval is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Figures = dict[str, Any]


class Aim(NamedTuple):
    """A bound for one figure."""

    title: str
    place: tuple[str, ...]
    """The keys that lead to the figure."""
    bound: float
    is_upper: bool = False
    """Whether the figure must not be above the bound; otherwise it must not be below."""


AIMS = (
    Aim("cost of not seeing, nats per token", ("references", "cost"), 0.02, is_upper=True),
    Aim(
        "IFEval, strict, less the baseline",
        ("sets", "ifeval", "ifeval", "prompt_strict_difference"),
        -0.01,
    ),
    Aim(
        "all sets: repetition, less the baseline",
        ("text", "repetition", "difference"),
        0.0,
        is_upper=True,
    ),
    Aim(
        "all sets: repeated lines, less the baseline",
        ("text", "repeated_lines", "difference"),
        0.0,
        is_upper=True,
    ),
    Aim("all sets: coverage, less the baseline", ("text", "coverage", "difference"), 0.0),
    Aim("AlpacaEval: theoretical speedup", ("sets", "alpaca", "theoretical_speedup"), 1.5),
    Aim(
        "AlpacaEval, several parts: theoretical speedup",
        ("sets", "alpaca", "parts", "several", "theoretical_speedup"),
        2.0,
    ),
    Aim(
        "AlpacaEval, several parts: answers that fork",
        ("sets", "alpaca", "parts", "several", "forks"),
        0.9,
    ),
    Aim(
        "AlpacaEval, one part: answers that do not fork",
        ("sets", "alpaca", "parts", "one", "stays_sequential"),
        0.95,
    ),
    Aim(
        "held-out instructions, several parts: answers that fork",
        ("sets", "instructions", "parts", "several", "forks"),
        0.9,
    ),
    Aim(
        "held-out instructions, one part: answers that do not fork",
        ("sets", "instructions", "parts", "one", "stays_sequential"),
        0.95,
    ),
    Aim("AlpacaEval: only legal tags", ("sets", "alpaca", "legal"), 1.0),
    Aim("AlpacaEval: only legal tags, mask off", ("sets", "alpaca", "legal_unmasked"), 0.99),
)


def compare_with_aims(report: Mapping[str, Any]) -> list[Figures]:
    """Return every aim with its figure; what was not measured is None."""
    return [_compared(aim, _figure(report, aim.place)) for aim in AIMS]


def _figure(report: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        report = report.get(key) if isinstance(report, Mapping) else None
    return report


def _compared(aim: Aim, figure: Any) -> Figures:
    found: Figures = {"aim": aim.title, "bound": aim.bound, "is_upper": aim.is_upper}
    found |= {"figure": figure, "is_met": None, "is_clear": None}
    if figure is None:
        return found
    is_interval = isinstance(figure, Mapping)
    mean, low, high = (figure[k] if is_interval else figure for k in ("mean", "low", "high"))
    worst = high if aim.is_upper else low
    sign = -1 if aim.is_upper else 1
    is_met, is_clear = (sign * value >= sign * aim.bound for value in (mean, worst))
    return found | {"is_met": is_met, "is_clear": is_clear}
