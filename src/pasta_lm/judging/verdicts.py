"""Read a judge's raw reply: a preference between two answers, or the reason why there is none."""

from __future__ import annotations

import re
from enum import StrEnum
from math import exp
from typing import NamedTuple

from pasta_lm.judging.judge import Verdict, Winner
from pasta_lm.judging.template import Method
from pasta_lm.remote.chat import ChatReply

MIN_PROBABILITY = 0.1
"""Of A and B together; below it, the judge wanted to say something else."""
TIE_TOLERANCE = 1e-9
_STATED = re.compile(
    r"^\W*verdict\W+(?P<winner>a|b|tie)\b\W+confidence\W+(?P<confidence>\d{1,3})\b\W*$",
    re.IGNORECASE,
)


class Problem(StrEnum):
    """Why there is no verdict."""

    NO_REPLY = "no-reply"
    """The endpoint did not answer, or no reply is stored."""
    REFUSED = "refused"
    NO_LOGPROBS = "no-logprobs"
    NOT_A_VERDICT = "not-a-verdict"
    """The reply names neither answer in the requested form."""
    CUT = "cut"
    """The reply ends before its verdict."""


class Reading(NamedTuple):
    """The content of a reply; one of the two is None."""

    first_wins: float | None
    """Probability that the first answer is better."""
    problem: Problem | None


def read_verdict(method: Method, reply: ChatReply) -> Reading:
    """Read a reply by the method of its template."""
    if reply.refusal:
        return Reading(None, Problem.REFUSED)
    return _one_token(reply) if method is Method.LOGPROBS else _stated(reply)


def verdict_of(first_wins: float) -> Verdict:
    """Return a preference as a winner and the probability, above 0.5, that it is better."""
    if abs(first_wins - 0.5) < TIE_TOLERANCE:
        return Verdict(Winner.TIE, 0.5)
    winner = Winner.FIRST if first_wins > 0.5 else Winner.SECOND
    return Verdict(winner, max(first_wins, 1 - first_wins))


def _one_token(reply: ChatReply) -> Reading:
    """Compare A with B among the candidates of the first token; spellings of a letter add up."""
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
    if not total >= MIN_PROBABILITY:  # also if it is NaN
        return Reading(None, Problem.NOT_A_VERDICT)
    return Reading(masses["A"] / total, None)


def _stated(reply: ChatReply) -> Reading:
    """Read the last line that is a verdict; a confidence below 0.5 counts as 0.5."""
    found = [line for line in map(_STATED.match, map(str.strip, reply.text.splitlines())) if line]
    if not found:
        is_cut = reply.finish_reason == "length"
        return Reading(None, Problem.CUT if is_cut else Problem.NOT_A_VERDICT)
    winner, confidence = found[-1]["winner"].upper(), int(found[-1]["confidence"]) / 100
    if confidence > 1:
        return Reading(None, Problem.NOT_A_VERDICT)
    if winner == "TIE":
        return Reading(0.5, None)
    confidence = max(confidence, 0.5)
    return Reading(confidence if winner == "A" else 1 - confidence, None)
