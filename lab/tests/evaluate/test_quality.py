"""Quality figures and fork decisions of small hand-made answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.tests.evaluate.rows import CHAIN, FORKS, SYNCS, answered, marks, task, unit
from pasta_lab.evaluate.quality import decisions, quality
from pasta_lab.evaluate.records import GradedAnswer
from pasta_lab.tasks import Task

grades = st.floats(0, 1)
pairs_of_grades = st.lists(st.tuples(grades, grades), min_size=1, max_size=8)


def graded(*grades: float) -> list[GradedAnswer]:
    return [answered(grade) for grade in grades]


def means(figures: dict[str, Any], *names: str) -> list[float | None]:
    """Return the estimates under these names; None stays None."""
    return [figures[name] and figures[name]["mean"] for name in names]


# --- grades


def test_quality_is_the_mean_grade_and_its_difference_to_the_baseline() -> None:
    found = quality(graded(1.0, 0.5, 0.25, 0.0), graded(0.5, 0.5, 0.75, 0.0))
    assert means(found, "quality", "quality_difference", "win_rate") == [0.4375, 0.0, 0.5]
    assert [found[name] for name in ("wins", "ties", "losses")] == [1, 2, 1]


@pytest.mark.parametrize(
    ("ours", "theirs", "wins_ties_losses", "win_rate"),
    [
        ((1.0,), (0.9,), (1, 0, 0), 1.0),
        ((0.9,), (1.0,), (0, 0, 1), 0.0),
        ((0.3,), (0.1 + 0.2,), (0, 1, 0), 0.5),  # the same grade, summed another way
        ((1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1, 2, 0), 2 / 3),
        ((0.0, 0.0), (0.0, 1.0), (0, 1, 1), 0.25),
    ],
)
def test_a_tie_is_half_a_win(
    ours: Sequence[float],
    theirs: Sequence[float],
    wins_ties_losses: tuple[int, int, int],
    win_rate: float,
) -> None:
    found = quality(graded(*ours), graded(*theirs))
    assert (found["wins"], found["ties"], found["losses"]) == wins_ties_losses
    assert found["win_rate"]["mean"] == pytest.approx(win_rate, abs=1e-5)


@given(pairs_of_grades)
def test_wins_of_one_side_are_losses_of_the_other(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (graded(*side) for side in zip(*pairs, strict=True))
    one, other = quality(ours, theirs), quality(theirs, ours)
    assert one["wins"] + one["ties"] + one["losses"] == len(pairs)
    assert (one["wins"], one["ties"]) == (other["losses"], other["ties"])
    assert one["win_rate"]["mean"] == pytest.approx(1 - other["win_rate"]["mean"], abs=2e-5)
    difference = one["quality_difference"]["mean"]
    assert difference == pytest.approx(-other["quality_difference"]["mean"], abs=2e-5)


# --- decisions


def decided(*pairs: tuple[Task, GradedAnswer]) -> dict[str, Any]:
    tasks, answers = zip(*pairs, strict=True)
    return decisions(tasks, answers)


def marked(**marking: Any) -> GradedAnswer:
    return answered(structure=marks(**marking))


RATES = ("fork_precision", "fork_recall", "sync_precision", "sync_recall")


@pytest.mark.parametrize(
    ("pairs", "rates", "exact"),
    [
        ([(FORKS, marked(forked=[0, 1, 2]))], [1.0, 1.0, None, None], 1.0),
        ([(SYNCS, marked(forked=[0, 1], syncs=[2]))], [1.0, 1.0, 1.0, 1.0], 1.0),
        # Who forks nothing errs in no fork, and finds none.
        ([(FORKS, marked())], [None, 0.0, None, None], 0.0),
        ([(SYNCS, marked())], [None, 0.0, None, 0.0], 0.0),
        ([(CHAIN, marked())], [None, None, None, None], 1.0),
        ([(CHAIN, marked(forked=[0, 1]))], [0.0, None, None, None], 0.0),
        ([(FORKS, marked(syncs=[3]))], [None, 0.0, 0.0, None], 0.0),
        # A stray block was given, and spoils an exact structure.
        ([(FORKS, marked(forked=[0, 1, 2], num_stray=1))], [0.75, 1.0, None, None], 0.0),
        ([(SYNCS, marked(forked=[0, 1], syncs=[1, 2]))], [1.0, 1.0, 0.5, 1.0], 0.0),
        # Over all prompts together, not prompt by prompt.
        (
            [
                (FORKS, marked(forked=[0, 1])),  # 2 of 2 right, of 3
                (SYNCS, marked(forked=[0, 1, 2], syncs=[1])),  # 2 of 3 right, of 2
                (CHAIN, marked(forked=[1])),  # 0 of 1 right, of 0
            ],
            [4 / 6, 4 / 5, 0.0, 0.0],
            0.0,
        ),
    ],
)
def test_forks_and_syncs_are_counted_over_all_prompts(
    pairs: list[tuple[Task, GradedAnswer]], rates: list[float | None], exact: float
) -> None:
    found = decided(*pairs)
    assert means(found, *RATES) == [
        rate if rate is None else pytest.approx(rate, abs=1e-5) for rate in rates
    ]
    assert found["structure_exact"] == pytest.approx(exact)


def side(pair: str | None, *, is_exact: bool) -> tuple[Task, GradedAnswer]:
    """Return one side of a minimal pair with an answer."""
    asked = task(unit("Ada"), unit("Bob"), pair=pair)
    return asked, marked(forked=[0, 1] if is_exact else [0])


@pytest.mark.parametrize(
    ("sides", "accuracy", "num_pairs"),
    [
        ([], None, 0),
        ([("a", True)], None, 0),
        ([("a", True), ("a", True)], 1.0, 1),
        ([("a", True), ("a", False)], 0.0, 1),
        ([("a", False), ("a", False)], 0.0, 1),
        # Half a pair and a task without a pair partner are not counted.
        ([("a", True), ("b", False), (None, True), ("a", True), (None, False)], 1.0, 1),
        ([("a", True), ("b", True), ("b", True), ("a", False), ("c", True)], 0.5, 2),
    ],
)
def test_a_minimal_pair_is_exact_if_both_sides_are(
    sides: list[tuple[str | None, bool]], accuracy: float | None, num_pairs: int
) -> None:
    pairs = [side(pair, is_exact=is_exact) for pair, is_exact in sides]
    found = decisions([asked for asked, _ in pairs], [given for _, given in pairs])
    assert means(found, "pair_accuracy") == [accuracy]
    assert found["num_pairs"] == num_pairs


FREE = replace(FORKS, pair="p")
BOUND = task(*(unit(name, fork=False) for name in ("Ada", "Bob", "Cid")), pair="p")


@pytest.mark.parametrize(
    ("free", "bound", "is_apart"),
    [
        (marked(forked=[0, 1, 2]), marked(), 1.0),
        # Not exact, and yet on the right side.
        (marked(forked=[0, 2], num_stray=2), marked(num_stray=1), 1.0),
        (marked(forked=[0, 1]), marked(forked=[2]), 1.0),
        # One answer to both sides, whatever it is.
        (marked(), marked(), 0.0),
        (marked(forked=[0, 1, 2]), marked(forked=[0, 1, 2]), 0.0),
        (marked(forked=[0]), marked(forked=[0]), 0.0),
        # The wrong way round, and half way.
        (marked(), marked(forked=[0, 1, 2]), 0.0),
        (marked(forked=[0, 1, 2]), marked(forked=[0, 1]), 0.0),
    ],
)
def test_a_pair_is_told_apart_if_each_side_is_nearer_to_its_own_structure(
    free: GradedAnswer, bound: GradedAnswer, is_apart: float
) -> None:
    assert means(decided((FREE, free), (BOUND, bound)), "pairs_told_apart") == [is_apart]


# --- what JSON holds
