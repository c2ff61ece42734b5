"""A judge's raw reply -> a preference between two answers, or the reason why there is none.

Nothing is guessed: a reply that does not say what was asked for is counted under its reason.
"""

from __future__ import annotations

import re
from enum import StrEnum
from math import exp
from typing import NamedTuple

from pasta_lm.judging.judge import Verdict, Winner
from pasta_lm.judging.template import Method
from pasta_lm.remote.chat import ChatReply

MIN_MASS = 0.1
"""Candidates A and B together; a judge that would rather say something else gave no verdict."""
TIE = 1e-9
_STATED = re.compile(
    r"^\W*verdict\W+(?P<winner>a|b|tie)\b\W+confidence\W+(?P<confidence>\d{1,3})\b\W*$",
    re.IGNORECASE,
)


class Problem(StrEnum):
    """Why there is no verdict."""

    NO_REPLY = "no-reply"
    """The endpoint did not answer, or nothing is stored."""
    REFUSED = "refused"
    """The model declined."""
    NO_LOGPROBS = "no-logprobs"
    """The endpoint gave no log-probabilities, although they were asked for."""
    NOT_A_VERDICT = "not-a-verdict"
    """The reply names neither answer in the form that was asked for."""
    CUT = "cut"
    """The reply was cut before its verdict."""


class Reading(NamedTuple):
    """What a reply says; one of the two is None."""

    first_wins: float | None
    """From 0, the second answer is better, to 1, the first."""
    problem: Problem | None


def read_verdict(method: Method, reply: ChatReply) -> Reading:
    """Read a reply by the method of its template."""
    if reply.refusal:
        return Reading(None, Problem.REFUSED)
    return _one_token(reply) if method is Method.LOGPROBS else _stated(reply)


def verdict_of(first_wins: float) -> Verdict:
    """Return a preference as a winner with a confidence, from 0 to 1.

    The confidence is the probability that the winner is better, so it is above one half.
    """
    if abs(first_wins - 0.5) < TIE:
        return Verdict(Winner.TIE, 0.5)
    winner = Winner.FIRST if first_wins > 0.5 else Winner.SECOND
    return Verdict(winner, max(first_wins, 1 - first_wins))


def _one_token(reply: ChatReply) -> Reading:
    """Weigh A against B among the candidates of the first token.

    Spellings of a letter, such as with a space before it, count together.
    """
    if not reply.logprobs:
        return Reading(None, Problem.NO_LOGPROBS)
    first = reply.logprobs[0]
    candidates = {one.token: one.logprob for one in first.top} or {first.token: first.logprob}
    masses = {"A": 0.0, "B": 0.0}
    for token, logprob in candidates.items():
        letter = token.strip().strip("*\"'`().:").upper()
        if letter in masses:
            masses[letter] += exp(min(logprob, 0.0))
    total = sum(masses.values())
    if not total >= MIN_MASS:
        return Reading(None, Problem.NOT_A_VERDICT)
    return Reading(masses["A"] / total, None)


def _stated(reply: ChatReply) -> Reading:
    """Read the last line that is a verdict; a confidence below one half counts as one half."""
    lines = [_STATED.match(line.strip()) for line in reply.text.splitlines()]
    found = [line for line in lines if line]
    if not found:
        is_cut = reply.finish_reason == "length"
        return Reading(None, Problem.CUT if is_cut else Problem.NOT_A_VERDICT)
    winner, confidence = found[-1]["winner"].upper(), int(found[-1]["confidence"]) / 100
    if confidence > 1:
        return Reading(None, Problem.NOT_A_VERDICT)
    if winner == "TIE":
        return Reading(0.5, None)
    share = max(confidence, 0.5)
    return Reading(share if winner == "A" else 1 - share, None)
