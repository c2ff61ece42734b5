"""What a judge is asked, what it answers, and what a sample's quality is made of.

A judge compares two answers to a prompt. It is always asked in both orders, because judges favour
a place.

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
    """Two answers to one prompt, in the order in which the judge reads them."""

    prompt_id: str
    prompt: str
    first: str
    """Plain text, as a reader gets it."""
    second: str


class Verdict(NamedTuple):
    """What a judge says."""

    winner: Winner
    confidence: float
    """From 0 to 1; of a tie it is not read."""


class Judge(Protocol):
    """Whoever can compare answers; all comparisons come at once, so that it may ask in parallel."""

    def compare(self, comparisons: Sequence[Comparison]) -> Sequence[Verdict | None]:
        """Return a verdict on each comparison, in order; None where there is none to be had."""
        ...


def both_orders(prompt_id: str, prompt: str, ours: str, theirs: str) -> list[Comparison]:
    """Return what is asked of one opponent: our answer first, then theirs."""
    return [
        Comparison(prompt_id, prompt, ours, theirs),
        Comparison(prompt_id, prompt, theirs, ours),
    ]


def smoothed_ratio(verdicts: Iterable[Verdict], smoothing: float) -> float:
    """Return confidence of wins / confidence of losses, both raised by the same amount.

    ``(wins + smoothing) / (losses + smoothing)``: 1 where all is tied, and bounded where nothing
    is lost, in which case the paper's ratio has no value. With two opponents in both orders, so
    four verdicts, and a smoothing of 1 it lies between 1/5 and 5.

    Args:
        verdicts: On comparisons of ``both_orders``, in that order: ours stands first in those of
            even index.
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
