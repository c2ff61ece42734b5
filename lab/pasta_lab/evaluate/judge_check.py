"""How far a judge can be trusted: its verdicts on pairs of which the better answer is known.

Every pair is judged in both orders, whose log-odds are averaged. A tie counts half. Intervals are
over prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from pasta_lab.evaluate.agreement import cohens_kappa
from pasta_lab.evaluate.judge_pairs import TIE, Pair
from pasta_lab.judge.damage import Damage
from pasta_lm.journal import Row
from pasta_lm.learn.judge.judge import (
    TIE_TOLERANCE,
    Judge,
    Reading,
    averaged,
    first_wins_of,
    same_winner,
)
from pasta_lm.measure.intervals import as_dict, ratio

Figures = dict[str, Any]
MIN_ACCURACY = 0.9
"""On planted damage; a judge that is less often right gives no headline."""


class JudgedPair(NamedTuple):
    """A pair, and the probabilities that its first answer is better, as the judge sees them."""

    pair: Pair
    ours_first: float
    """That ours is better if it is read first."""
    theirs_first: float
    """That theirs is better if it is read first."""
    ours_wins: float
    """Over both orders."""

    @property
    def is_right(self) -> float:
        """Return 1 if the judge's winner is the known one, 0.5 for a tie of either, else 0."""
        return _agrees(self.ours_wins, self.pair.ours_wins)

    @property
    def is_right_in_one_order(self) -> float:
        """Return the mean of the same over the two orders, each by itself."""
        orders = (self.ours_first, 1 - self.theirs_first)
        return fmean(_agrees(one, self.pair.ours_wins) for one in orders)


def judged_pairs(judge: Judge, pairs: Sequence[Pair]) -> list[JudgedPair | None]:
    """Return what a judge says of each pair, in order; None if an order has no verdict.

    Args:
        judge: Its verdicts on the two orders must not be averaged yet.
        pairs: All are given to the judge at once.

    Raises:
        PastaError: as the judge raises it.
    """
    verdicts = judge.compare([one for pair in pairs for one in pair.orders])
    found: list[JudgedPair | None] = []
    for pair, first, second in zip(pairs, verdicts[::2], verdicts[1::2], strict=True):
        if first is None or second is None:
            found.append(None)
            continue
        one, other = first_wins_of(first), first_wins_of(second)
        both = averaged(Reading(one, None), Reading(other, None)).first_wins
        assert both is not None
        found.append(JudgedPair(pair, one, other, both))
    return found


def rows_of(judged: Iterable[JudgedPair | None]) -> list[Row]:
    """Return pairs with what was said of them, to be read by people; unjudged ones are left out."""
    return [
        one.pair._asdict()
        | {"id": f"{one.pair.kind}/{one.pair.id}", "judged": one.ours_wins}
        | {"ours_first": one.ours_first, "theirs_first": one.theirs_first}
        for one in judged
        if one is not None
    ]


def damage_figures(judged: Sequence[JudgedPair | None]) -> Figures:
    """Return how often the undamaged answer is preferred, by kind of damage and over all.

    A kind without a pair is not there.
    """
    given = [one for one in judged if one is not None]
    kinds = {str(kind): [one for one in given if one.pair.kind == kind] for kind in Damage}
    return {
        "kinds": {kind: _accuracy(some) for kind, some in kinds.items() if some},
        "overall": _accuracy(given),
        "num_missing": len(judged) - len(given),
    }


def _accuracy(judged: Sequence[JudgedPair]) -> Figures:
    return {
        "num_pairs": len(judged),
        "accuracy": _over_prompts(judged, lambda one: one.is_right),
        "in_one_order": _over_prompts(judged, lambda one: one.is_right_in_one_order),
        **_order_figures(judged),
    }


def _order_figures(judged: Sequence[JudgedPair]) -> Figures:
    """Return how far the verdict depends on the place of an answer, as ``alpaca`` reports it."""
    return {
        "order_agreement": _over_prompts(
            judged, lambda one: float(same_winner(one.ours_first, one.theirs_first))
        ),
        "first_place_share": _over_prompts(
            judged, lambda one: (one.ours_first + one.theirs_first) / 2
        ),
    }


def preference_figures(judged: Sequence[JudgedPair | None]) -> Figures:
    """Return how far a judge agrees with stored verdicts, beside two rules that read nothing.

    ``majority`` is the agreement of naming always the side that won more often, and ``longer``
    that of naming always the longer answer, in characters. ``over_longer`` is the judge's
    agreement less that of the longer answer, on the same pairs. ``kappa`` is Cohen's, over pairs
    that neither calls a tie. ``prefers_longer`` is the share of pairs of unequal length of which
    the longer answer wins, and ``length_bias`` how much that is above the stored verdicts'.
    """
    given = [one for one in judged if one is not None]
    won = [one for one in given if one.pair.ours_wins > TIE]
    lost = [one for one in given if one.pair.ours_wins < TIE]
    unequal = [one for one in given if len(one.pair.ours) != len(one.pair.theirs)]
    decided = [one for one in (*won, *lost) if not _is_tie(one.ours_wins)]
    majority = 1.0 if len(won) > len(lost) else 0.0
    return {
        "num_pairs": len(given),
        "num_missing": len(judged) - len(given),
        "agreement": _over_prompts(given, lambda one: one.is_right),
        "agreement_where_model_won": _over_prompts(won, lambda one: one.is_right),
        "agreement_where_reference_won": _over_prompts(lost, lambda one: one.is_right),
        "kappa": cohens_kappa([(one.ours_wins > TIE, one.pair.ours_wins > TIE) for one in decided]),
        "majority": _over_prompts(given, lambda one: _agrees(majority, one.pair.ours_wins)),
        "longer": _over_prompts(given, lambda one: _agrees(_longer(one), one.pair.ours_wins)),
        "over_longer": _over_prompts(
            given, lambda one: one.is_right - _agrees(_longer(one), one.pair.ours_wins)
        ),
        **_order_figures(given),
        "prefers_longer": _over_prompts(unequal, _prefers_longer),
        "stored_prefers_longer": _over_prompts(unequal, _stored_prefers_longer),
        "length_bias": _over_prompts(
            unequal, lambda one: _prefers_longer(one) - _stored_prefers_longer(one)
        ),
    }


def refusals(damage: Figures | None, *, max_missing: float, is_scripted: bool = False) -> list[str]:
    """Return why a judge may give no headline; empty if it may.

    Args:
        damage: Its ``damage_figures``; None: none was planted.
        max_missing: Largest share of pairs without a verdict.
        is_scripted: Whether its replies follow a script.
    """
    if damage is None:
        return ["no damage was planted"]
    found = ["its replies follow a script"] if is_scripted else []
    missing, given = damage["num_missing"], damage["overall"]["num_pairs"]
    if missing > max_missing * (missing + given):
        found.append(f"{missing} of {missing + given} damaged pairs have no verdict")
    accuracy = damage["overall"]["accuracy"]
    if accuracy is None or accuracy["mean"] < MIN_ACCURACY:
        said = "right on none" if accuracy is None else f"right on {accuracy['mean']:.3f}"
        found.append(f"{said} of planted damage, below {MIN_ACCURACY}")
    return found


def _over_prompts(
    judged: Iterable[JudgedPair], value: Callable[[JudgedPair], float]
) -> dict[str, float] | None:
    """Return the mean over pairs with its interval; pairs of one prompt are drawn together."""
    sums: dict[str, list[float]] = {}
    for one in judged:
        sums.setdefault(one.pair.id, []).append(value(one))
    return as_dict(ratio(list(map(sum, sums.values())), list(map(len, sums.values()))))


def _is_tie(ours_wins: float) -> bool:
    return abs(ours_wins - TIE) < TIE_TOLERANCE


def _agrees(said: float, known: float) -> float:
    if _is_tie(said) or _is_tie(known):
        return 0.5
    return float((said > TIE) == (known > TIE))


def _longer(one: JudgedPair) -> float:
    """Return the verdict of who prefers the longer answer."""
    ours, theirs = len(one.pair.ours), len(one.pair.theirs)
    return TIE if ours == theirs else float(ours > theirs)


def _prefers_longer(one: JudgedPair) -> float:
    return _agrees(one.ours_wins, _longer(one))


def _stored_prefers_longer(one: JudgedPair) -> float:
    return _agrees(one.pair.ours_wins, _longer(one))
