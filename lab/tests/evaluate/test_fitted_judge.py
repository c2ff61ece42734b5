"""A judge fitted to known verdicts: its measures, and that no verdict comes from its own label."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
TEXTS = ["The cat sat on the mat.", "Bread needs flour, water and salt.", "Rain fell all day."]
PROMPT = "Name two things that bread needs."


@pytest.fixture(scope="module")
def fitted() -> dict[str, Any]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return runpy.run_path(str(SCRIPTS / "fitted_judge.py"))
    finally:
        sys.path.remove(str(SCRIPTS))


def pairs(fitted: dict[str, Any], run: str, *, shorter_wins: bool) -> list[Any]:
    """Forty pairs of a run; the first answer is longer in every second one."""
    found = []
    for number in range(40):
        short, long = "Flour.", "Flour and water " * (2 + number % 5)
        first, second = (long, short) if number % 2 else (short, long)
        wins = float((number % 2 == 0) == shorter_wins)
        found.append(fitted["Labelled"](run, "read", f"{PROMPT} {number}", first, second, wins))
    return found


def verdicts(fitted: dict[str, Any], given: list[Any]) -> Any:
    measures = fitted["Measures"](TEXTS)
    each = [[measures.of(one.prompt, text) for text in (one.first, one.second)] for one in given]
    return fitted["held_out_verdicts"](given, np.array([np.subtract(*two) for two in each]), 0)


@pytest.mark.parametrize(
    ("better", "worse", "measure"),
    [
        ("Flour, and water.", "Flour, and water. Flour, and water.", "doubled"),
        (
            "Bread needs flour and water.",
            "Flour and salt and flour and salt and flour.",
            "repeated_within",
        ),
        ("1. Flour.\n2. Salt.", "1. Flour.\n3. Salt.", "skips_number"),
        ("1. Flour.\n2. Salt.", "1. Flour.\n1. Flour.", "doubles_number"),
        ("1. Flour.\n2. Salt.", "Flour is needed.", "missing"),
        ("Bread needs flour and salt.", "Bread needs flour and", "ends_open"),
    ],
    ids=lambda value: value if value.isidentifier() else "",
)
def test_what_is_wrong_with_an_answer_raises_its_measure(
    fitted: dict[str, Any], better: str, worse: str, measure: str
) -> None:
    measures = fitted["Measures"](TEXTS)
    assert getattr(measures.of(PROMPT, better), measure) == 0
    assert getattr(measures.of(PROMPT, worse), measure) > 0


def test_a_part_about_something_else_is_less_like_the_rest(fitted: dict[str, Any]) -> None:
    measures = fitted["Measures"](TEXTS)
    one, other = "Bread needs flour. Bread needs salt.", "Bread needs flour. Rain fell all day."
    assert measures.of(PROMPT, one).least_likeness > measures.of(PROMPT, other).least_likeness


def test_an_empty_answer_has_measures(fitted: dict[str, Any]) -> None:
    assert np.isfinite(fitted["Measures"](TEXTS).of(PROMPT, "")).all()


def test_a_preference_that_all_runs_share_is_found_on_prompts_that_were_held_out(
    fitted: dict[str, Any],
) -> None:
    given = [one for run in "ab" for one in pairs(fitted, run, shorter_wins=True)]
    found = fitted["figures"](given, verdicts(fitted, given))
    assert found["read"]["agreement"]["mean"] == 1
    assert found["a"]["shorter"]["mean"] == 1
    assert found["a"]["win_rate"]["mean"] == found["a"]["read_win_rate"]["mean"] == 0.5


def test_the_verdicts_on_a_run_do_not_depend_on_its_own_labels(fitted: dict[str, Any]) -> None:
    others = pairs(fitted, "a", shorter_wins=True)
    right, wrong = (pairs(fitted, "b", shorter_wins=wins) for wins in (True, False))
    first, second = (verdicts(fitted, others + own)[len(others) :] for own in (right, wrong))
    assert (first == second).all()


def test_swapping_two_answers_swaps_the_verdict(fitted: dict[str, Any]) -> None:
    given = [one for run in "ab" for one in pairs(fitted, run, shorter_wins=True)]
    swapped = [
        fitted["Labelled"](
            one.source, one.kind, one.prompt, one.second, one.first, 1 - one.first_wins
        )
        for one in given
    ]
    assert verdicts(fitted, swapped) == pytest.approx(1 - verdicts(fitted, given))
