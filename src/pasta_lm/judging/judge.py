"""The judge protocol, and the quality that verdicts give a sample.

A judge compares two answers to a prompt. Every pair is compared in both orders, because judges
favour a position.

Source: PASTA, section 4 (wins and losses weighted by confidence, two opponents, both orders).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol


class Winner(StrEnum):
    """Which of two answers is better."""

    FIRST = "first"
    SECOND = "second"
    TIE = "tie"


class Comparison(NamedTuple):
    """Two answers to one prompt as plain text, in the order in which the judge reads them."""

    prompt_id: str
    prompt: str
    first: str
    second: str


class Verdict(NamedTuple):
    """The better answer and the judge's confidence, from 0 to 1; a tie's is ignored."""

    winner: Winner
    confidence: float


class Judge(Protocol):
    """A judge takes all comparisons at once, so that it may ask about them in parallel."""

    def compare(self, comparisons: Sequence[Comparison]) -> Sequence[Verdict | None]:
        """Return a verdict on each comparison, in order; None where the judge gave none."""
        ...


def both_orders(prompt_id: str, prompt: str, ours: str, theirs: str) -> list[Comparison]:
    """Return the two comparisons with one opponent: our answer first, then theirs first."""
    return [
        Comparison(prompt_id, prompt, ours, theirs),
        Comparison(prompt_id, prompt, theirs, ours),
    ]


def smoothed_ratio(verdicts: Iterable[Verdict], smoothing: float) -> float:
    """Return ``(wins + smoothing) / (losses + smoothing)``, weighted by confidence.

    1 where all is tied, and bounded where nothing is lost, in which case the paper's ratio is
    undefined. With four verdicts and a smoothing of 1 it lies between 1/5 and 5.

    Args:
        verdicts: On comparisons of ``both_orders``, in that order: ours comes first in those with
            an even index.
        smoothing: Above 0.

    Source: PASTA, section 4, without the smoothing.
    """
    wins = losses = 0.0
    for index, (winner, confidence) in enumerate(verdicts):
        if winner is Winner.TIE:
            continue
        if winner is (Winner.SECOND if index % 2 else Winner.FIRST):
            wins += confidence
        else:
            losses += confidence
    return (wins + smoothing) / (losses + smoothing)
