"""Judges compare two answers to a prompt: the protocol, prompt templates, and a model as judge.

A model gets one request for each comparison. Every raw reply is stored before it counts, under a
hash of everything that it depends on. So a run that was stopped pays for nothing twice, and
verdicts can be read again without requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, cycle
from math import exp
from pathlib import Path
from typing import NamedTuple, Protocol

from pasta_lm.errors import InputError, PastaError, UsageError
from pasta_lm.journal import Journal, Row, held
from pasta_lm.learn.chat.client import ChatClient, ChatReply, ChatRequest, TokenCounts, read_reply
from pasta_lm.learn.chat.pool import Estimate, RequestPool, Spending, estimate_tokens


class Comparison(NamedTuple):
    """Two answers to one prompt as plain text, in the order in which the judge reads them."""

    prompt_id: str
    prompt: str
    first: str
    second: str


class Judge(Protocol):
    """A judge takes all comparisons at once, so that it may ask about them in parallel."""

    def compare(self, comparisons: Sequence[Comparison]) -> Sequence[float | None]:
        """Return a verdict on each comparison, in order; None where the judge gave none.

        A verdict is a confidence with a sign: above 0 the first answer is better, below 0 the
        second; 0 is a tie.
        """


def both_orders(prompt_id: str, prompt: str, ours: str, theirs: str) -> list[Comparison]:
    return [Comparison(prompt_id, prompt, *o) for o in ((ours, theirs), (theirs, ours))]


def smoothed_ratio(verdicts: Iterable[float], smoothing: float) -> float:
    """Return ``(wins + smoothing) / (losses + smoothing)``, weighted by confidence.

    1 where all is tied, and bounded where nothing is lost, in which case the paper's ratio is
    undefined. The verdicts are on comparisons of ``both_orders``, ours first in every other one.

    Source: PASTA, section 4, without the smoothing.
    """
    wins = losses = 0.0
    for verdict, sign in zip(verdicts, cycle((1, -1))):
        wins += max(sign * verdict, 0.0)
        losses += max(-sign * verdict, 0.0)
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
    sha256: str  # The first 16 digits of the page's hash.

    def request(self, comparison: Comparison) -> ChatRequest:
        values = dict(zip(FIELDS, comparison[1:], strict=True))
        # One pass over all fields: an answer that spells a field stays as it is.
        filled = _FIELD.sub(lambda field: values[field[1]], self.user)
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": filled}]
        if self.method is Method.LOGPROBS:
            return ChatRequest(messages, max_tokens=1, top_logprobs=TOP_LOGPROBS)
        return ChatRequest(messages, max_tokens=MAX_STATED_TOKENS)


def load_template(name: str) -> JudgeTemplate:
    path = Path(name) if name.endswith(".md") else FOLDER / f"{name}.md"
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        names = ", ".join(sorted(path.stem for path in FOLDER.glob("*.md")))
        hint = f"{names}, or a page of your own ending in .md"
        raise UsageError(f"no judge's template {name!r}: {path} cannot be read", hint=hint) from exc
    page = _PAGE.match(text.replace("\r\n", "\n"))
    if page is None or page["method"].strip() not in [*Method]:
        hint = f"a line 'Method: {' or '.join(Method)}', then '# System', then '# User'"
        raise InputError(f"{path} is not a judge's template", hint=hint)
    if sorted(_FIELD.findall(page["user"])) != sorted(FIELDS):
        names = ", ".join(f"{{{{{field}}}}}" for field in FIELDS)
        raise InputError(f"{path}: its user's part must have {names}, each once")
    sha256 = hashlib.sha256(text.encode()).hexdigest()[:16]
    method = Method(page["method"].strip())
    return JudgeTemplate(path.stem, method, page["system"], page["user"], sha256)


MIN_PROBABILITY = 0.1  # Least sum of A and B; below it the judge meant something else.
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
    UNREAD = "unread"  # A file has no verdict on it.


class Reading(NamedTuple):
    """The probability that the first answer is better, or why the reply does not tell."""

    first_wins: float | None
    problem: NoVerdict | None = None


def read_verdict(method: Method, reply: ChatReply) -> Reading:
    if reply.refusal:
        return Reading(None, NoVerdict.REFUSED)
    return _read_one_token(reply) if method is Method.LOGPROBS else _read_stated(reply)


def verdict_of(first_wins: float) -> float:
    """Return a probability as a verdict: its confidence is that of the better answer."""
    if abs(first_wins - 0.5) < TIE_TOLERANCE:
        return 0.0
    return first_wins if first_wins > 0.5 else first_wins - 1


def same_winner(reading: float, swapped: float) -> bool:
    """Return whether both orders of a pair give the same winner; a tie agrees with both.

    Both are probabilities that the answer that comes first is better.
    """
    return (reading - 0.5) * (swapped - 0.5) <= 0


def _read_one_token(reply: ChatReply) -> Reading:
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


def _read_stated(reply: ChatReply) -> Reading:
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


SCRIPTED = "scripted"
"""A model whose name begins with this follows a script, so its verdicts are not judgements."""
Progress = Callable[[int, int, Spending], None]
"""Called with the replies of this run, the number requested, and all stored replies' tokens."""


@dataclass(frozen=True, slots=True)
class LLMJudge:
    """A ``Judge`` that asks a model."""

    model: str
    template: JudgeTemplate
    journal: Journal
    client: Callable[[], ChatClient] | None = None  # None: only stored replies are read.
    max_missing: float = 0.0  # Largest share of comparisons without a verdict.
    progress: Progress = lambda done, total, spent: None
    failures: dict[str, str] = field(default_factory=dict)
    """Requests of this run without a reply, by key."""
    missing: dict[NoVerdict, list[str]] = field(default_factory=dict)  # Prompts, by reason.

    @property
    def name(self) -> str:
        return f"{self.model}/{self.template.name}"

    @property
    def is_scripted(self) -> bool:
        names = [self.model]
        for row in self.journal.rows.values():
            reply = row["reply"]
            authors = (row.get("judge"), reply.get("model"), reply.get("system_fingerprint"))
            names += map(str, authors)
        return any(name.startswith(SCRIPTED) for name in names)

    def ask(self, comparisons: Sequence[Comparison]) -> list[Reading]:
        """Return the reading of each comparison, in order; only those without a reply are asked."""
        if self._unanswered(comparisons) and self.client is not None:
            path = self.journal.path
            with held(path.with_name(f"{path.name}.lock")):
                self.journal.read_again()
                self._ask(self._unanswered(comparisons), self.client)
        rows = [self.journal.rows.get(self.key(pair)) for pair in comparisons]
        method, lacking = self.template.method, Reading(None, NoVerdict.NO_REPLY)
        return [read_verdict(method, read_reply(row["reply"])) if row else lacking for row in rows]

    def compare(self, comparisons: Sequence[Comparison]) -> list[float | None]:
        """Return a verdict on each comparison, in order; None where the judge gave none.

        Equal answers are a tie, without asking.
        """
        different = [pair for pair in comparisons if pair.first != pair.second]
        readings = self.ask(different)
        names = [comparison.prompt_id for comparison in different]
        missing = missing_verdicts(zip(names, readings, strict=True))
        num, num_missing = len(readings), sum(map(len, missing.values()))
        if num_missing > self.max_missing * num:
            of = f"{num_missing} of {num} comparisons: {describe_missing(missing)}"
            hint = "run again to ask for missing replies; stored ones are final"
            raise PastaError(f"{self.name} gave no verdict on {of}", hint=hint)
        for problem, some in missing.items():
            self.missing.setdefault(problem, []).extend(some)
        verdicts = (None if wins is None else verdict_of(wins) for wins, _ in readings)
        return [0.0 if pair.first == pair.second else next(verdicts) for pair in comparisons]

    def key(self, comparison: Comparison) -> str:
        """Return the key of a comparison: a hash of everything that the reply depends on."""
        parts = [self.model, self.template.sha256, *comparison[1:]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]

    def estimate(self, comparisons: Sequence[Comparison]) -> Estimate:
        requests = [self.template.request(pair) for pair in self._unanswered(comparisons).values()]
        prompt = sum(estimate_tokens(request.messages) for request in requests)
        reply = 1 if self.template.method is Method.LOGPROBS else EXPECTED_STATED_TOKENS
        return Estimate(len(requests), TokenCounts(prompt, reply * len(requests)))

    def spending(self) -> Spending:
        return Spending(row for row in self.journal.rows.values() if row["judge"] == self.model)

    def _unanswered(self, comparisons: Sequence[Comparison]) -> dict[str, Comparison]:
        keyed = {self.key(pair): pair for pair in comparisons if pair.first != pair.second}
        return {key: pair for key, pair in keyed.items() if key not in self.journal.rows}

    def _ask(self, unanswered: Mapping[str, Comparison], client: Callable[[], ChatClient]) -> None:
        spent, numbers = self.spending(), count(1)
        pool = RequestPool("requests")

        async def work(job: tuple[str, Comparison]) -> None:
            key, comparison = job
            reply = await pool.ask(self.template.request(comparison))
            if isinstance(reply, ChatReply):
                row: Row = {"id": key, "prompt_id": comparison.prompt_id, "judge": self.model}
                row |= {"template": self.template.name, "template_sha256": self.template.sha256}
                row |= {"reply": dict(reply.raw)}
                self.journal.append([row])
                spent.count(row)
                self.progress(next(numbers), len(unanswered), spent)
            elif reply is not None:
                self.failures[key] = reply.message

        asyncio.run(pool.run(client, iter(unanswered.items()), work))
        if pool.is_interrupted:
            raise KeyboardInterrupt


def missing_verdicts(readings: Iterable[tuple[str, Reading]]) -> dict[NoVerdict, list[str]]:
    missing: dict[NoVerdict, list[str]] = {}
    for name, (_, problem) in readings:
        if problem:
            missing.setdefault(problem, []).append(name)
    return missing


def describe_missing(missing: Mapping[NoVerdict, Sequence[str]]) -> str:
    return ", ".join(f"{problem} {len(names)}" for problem, names in missing.items())


def missing_to_json(missing: Mapping[NoVerdict, Sequence[str]], what: str) -> Row:
    """Return for each reason a ``count``, and the names, each once, under the key ``what``."""
    return {
        problem.value: {"count": len(names), what: list(dict.fromkeys(names))}
        for problem, names in missing.items()
    }
