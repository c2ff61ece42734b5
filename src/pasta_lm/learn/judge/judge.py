"""The judge protocol, versioned prompt templates of judges, and the parser of their replies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from math import exp
from pathlib import Path
from typing import NamedTuple, Protocol

from pasta_lm.errors import InputError, UsageError
from pasta_lm.learn.chat.client import ChatReply, ChatRequest


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


def both_orders(prompt_id: str, prompt: str, ours: str, theirs: str) -> list[Comparison]:
    """Return the two comparisons with one opponent: our answer first, then theirs first."""
    return [
        Comparison(prompt_id, prompt, ours, theirs),
        Comparison(prompt_id, prompt, theirs, ours),
    ]


def smoothed_ratio(verdicts: Iterable[Verdict], smoothing: float) -> float:
    """Return ``(wins + smoothing) / (losses + smoothing)``, weighted by confidence.

    1 where all is tied, and bounded where nothing is lost, in which case the paper's ratio is
    undefined. The verdicts are on comparisons of ``both_orders``, ours first in every other one.

    Source: PASTA, section 4, without the smoothing.
    """
    wins = losses = 0.0
    for (winner, confidence), ours in zip(verdicts, cycle((Winner.FIRST, Winner.SECOND))):
        if winner is ours:
            wins += confidence
        elif winner is not Winner.TIE:
            losses += confidence
    return (wins + smoothing) / (losses + smoothing)


FOLDER = Path(__file__).parent / "prompts"
FIELDS = ("instruction", "answer_a", "answer_b")
TOP_LOGPROBS = 5  # Every endpoint allows so many candidates.
MAX_STATED_TOKENS = 400
EXPECTED_STATED_TOKENS = 100  # A guess: three sentences and a verdict.
_PAGE = re.compile(
    r"\AMethod: (?P<method>[^\n]+)\n+# System\n+(?P<system>.*?)\n+# User\n+(?P<user>.*?)\n*\Z",
    re.DOTALL,
)
_FIELD = re.compile(r"\{\{(\w+)\}\}")


class Method(StrEnum):
    """How a verdict is read from a reply."""

    LOGPROBS = "log-probabilities"
    """The probabilities of A and of B as the only token, as in AlpacaEval 2."""
    STATED = "stated confidence"
    """The last line states the winner and a confidence, as in the paper."""


@dataclass(frozen=True, slots=True)
class JudgeTemplate:
    """One version of a judge's prompt."""

    name: str
    method: Method
    system: str
    user: str  # With the three fields.
    sha256: str  # Of the page, the first 16 digits.

    def request(self, comparison: Comparison) -> ChatRequest:
        """Return the request for one comparison; the first answer is A."""
        values = dict(zip(FIELDS, comparison[1:], strict=True))
        # One pass over all fields: an answer that spells a field stays as it is.
        filled = _FIELD.sub(lambda field: values[field[1]], self.user)
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": filled}]
        if self.method is Method.LOGPROBS:
            return ChatRequest(messages, max_tokens=1, top_logprobs=TOP_LOGPROBS)
        return ChatRequest(messages, max_tokens=MAX_STATED_TOKENS)


def load_template(name: str) -> JudgeTemplate:
    """Load a template of the package by its name, or a page of your own, which ends in ``.md``."""
    path = Path(name) if name.endswith(".md") else FOLDER / f"{name}.md"
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        names = ", ".join(sorted(path.stem for path in FOLDER.glob("*.md")))
        raise UsageError(
            f"no judge's template {name!r}: {path} cannot be read",
            hint=f"{names}, or a page of your own ending in .md",
        ) from exc
    page = _PAGE.match(text.replace("\r\n", "\n"))
    methods = [method.value for method in Method]
    if page is None or page["method"].strip() not in methods:
        hint = f"a line 'Method: {' or '.join(methods)}', then '# System', then '# User'"
        raise InputError(f"{path} is not a judge's template", hint=hint)
    if sorted(_FIELD.findall(page["user"])) != sorted(FIELDS):
        wanted = ", ".join(f"{{{{{field}}}}}" for field in FIELDS)
        raise InputError(f"{path}: its user's part must have {wanted}, each once")
    sha256 = hashlib.sha256(text.encode()).hexdigest()[:16]
    method = Method(page["method"].strip())
    return JudgeTemplate(path.stem, method, page["system"], page["user"], sha256)


MIN_PROBABILITY = 0.1  # Of A and B together; below it, the judge wanted to say something else.
TIE_TOLERANCE = 1e-9
_STATED = re.compile(
    r"^\W*verdict\W+(?P<winner>a|b|tie)\b\W+confidence\W+(?P<confidence>\d{1,3})\b\W*$",
    re.IGNORECASE,
)


class NoVerdict(StrEnum):
    """Why there is no verdict."""

    NO_REPLY = "no-reply"  # The endpoint did not answer, or no reply is stored.
    REFUSED = "refused"
    NO_LOGPROBS = "no-logprobs"
    NOT_A_VERDICT = "not-a-verdict"  # The reply names neither answer in the requested form.
    CUT = "cut"  # The reply ends before its verdict.


class Reading(NamedTuple):
    """The probability that the first answer is better, or why the reply does not tell."""

    first_wins: float | None
    problem: NoVerdict | None = None


def read_verdict(method: Method, reply: ChatReply) -> Reading:
    """Read a reply by the method of its template."""
    if reply.refusal:
        return Reading(None, NoVerdict.REFUSED)
    return _one_token(reply) if method is Method.LOGPROBS else _stated(reply)


def verdict_of(first_wins: float) -> Verdict:
    """Return a preference as a winner and the probability, above 0.5, that it is better."""
    if abs(first_wins - 0.5) < TIE_TOLERANCE:
        return Verdict(Winner.TIE, 0.5)
    winner = Winner.FIRST if first_wins > 0.5 else Winner.SECOND
    return Verdict(winner, max(first_wins, 1 - first_wins))


def same_winner(reading: float, swapped: float) -> bool:
    """Return whether both orders of a pair give the same winner; a tie agrees with both.

    Both are probabilities that the answer that comes first is better.
    """
    return (reading - 0.5) * (swapped - 0.5) <= 0


def _one_token(reply: ChatReply) -> Reading:
    if not reply.candidates:
        return Reading(None, NoVerdict.NO_LOGPROBS)
    masses = {"A": 0.0, "B": 0.0}
    for token, logprob in reply.candidates.items():
        letter = token.strip().strip("*\"'`().:").upper()
        if letter in masses:  # in any of its spellings
            masses[letter] += exp(min(logprob, 0.0))
    total = sum(masses.values())
    if not total >= MIN_PROBABILITY:  # also if it is NaN
        return Reading(None, NoVerdict.NOT_A_VERDICT)
    return Reading(masses["A"] / total)


def _stated(reply: ChatReply) -> Reading:
    """Read the last line that is a verdict; a confidence below 0.5 counts as 0.5."""
    verdicts = list(filter(None, map(_STATED.match, map(str.strip, reply.text.splitlines()))))
    if not verdicts:
        is_cut = reply.finish_reason == "length"
        return Reading(None, NoVerdict.CUT if is_cut else NoVerdict.NOT_A_VERDICT)
    winner, confidence = verdicts[-1]["winner"].upper(), int(verdicts[-1]["confidence"]) / 100
    if confidence > 1:
        return Reading(None, NoVerdict.NOT_A_VERDICT)
    if winner == "TIE":
        return Reading(0.5)
    confidence = max(confidence, 0.5)
    return Reading(confidence if winner == "A" else 1 - confidence)
