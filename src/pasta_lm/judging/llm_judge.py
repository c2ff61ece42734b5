"""A language model as judge: asked once about each comparison, every raw reply kept.

A reply is on the disk before it counts, under the hash of all that it depends on. So a stopped run
pays for nothing twice, and every figure can be computed again without asking.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from pasta_lm.errors import PastaError
from pasta_lm.journal import Journal, Row, held
from pasta_lm.judging.judge import Comparison, Verdict
from pasta_lm.judging.template import JudgeTemplate
from pasta_lm.judging.verdicts import Problem, Reading, read_verdict, verdict_of
from pasta_lm.remote.budget import (
    Budget,
    CostLimitError,
    Estimate,
    Prices,
    Spending,
    Tokens,
    billed,
    guessed_tokens,
    most_tokens,
)
from pasta_lm.remote.chat import ChatReply, ChatRequest, read_reply
from pasta_lm.remote.client import ChatClient
from pasta_lm.remote.pool import INTERRUPT, Asking

SCRIPTED = "scripted"
"""A model whose name begins so says what it was told to: what it gives is no judgement."""
Progress = Callable[[int, int, Spending], None]
"""Told how many replies have come in this run, of how many, and what was spent in all."""


class MissingVerdictsError(PastaError):
    """Report that a judge left comparisons without a verdict."""


class Outcome(NamedTuple):
    """What became of one comparison."""

    key: str
    """Under which its reply is stored."""
    reading: Reading


@dataclass(frozen=True, slots=True)
class LLMJudge:
    """A judge that asks a model; it is a ``Judge`` for stage two as well.

    Attributes:
        model: Its name, as the endpoint knows it.
        template: What it is told.
        journal: Where replies are kept.
        client: Makes what asks; None: only stored replies are read.
        max_missing: In ``compare``: the largest share of comparisons that may lack a verdict.
        prices: Of the model.
        cost_limit_usd: Nothing is asked that could bring the cost of all stored replies above it.
        progress: Told after each reply.
        failures: By key, why a comparison has no reply; of this run alone.
        missing: By reason, the prompts that ``compare`` found without a verdict, one each time.
    """

    model: str
    template: JudgeTemplate
    journal: Journal
    client: Callable[[], ChatClient] | None = None
    max_missing: float = 0.0
    prices: Prices = Prices()
    cost_limit_usd: float | None = None
    progress: Progress = lambda done, total, spent: None
    failures: dict[str, str] = field(default_factory=dict)
    missing: dict[Problem, list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name that figures carry: the model and the template."""
        return f"{self.model}/{self.template.name}"

    @property
    def is_scripted(self) -> bool:
        """Tell whether this judge, or anybody who replied in its place, follows a script."""
        if self.model.startswith(SCRIPTED):
            return True
        return any(is_scripted(row) for row in self.journal.rows.values())

    def ask(self, comparisons: Sequence[Comparison]) -> list[Outcome]:
        """Return what became of each comparison, in order; only what is not stored is asked.

        Interrupted once, it awaits what was taken up, keeps it and raises; twice, it stops.

        Raises:
            UsageError: another process asks, or there is a limit and no price.
            EndpointError: the key, the model or the address is wrong; what came before is kept.
            RemoteError: the server is gone; the same.
            CostLimitError: the limit allows no more; the same.
            KeyboardInterrupt: somebody stopped it; the same.
        """
        keys = [self.key(comparison) for comparison in comparisons]
        if self.client is not None:
            wanted = self._wanted(comparisons)
            if wanted:
                self._ask(wanted, self.client)
        return [Outcome(key, self._read(key)) for key in keys]

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict | None]:
        """Return a verdict on each comparison, in order; None where the judge gave none.

        Equal answers are a tie, and nobody is asked.

        Raises:
            MissingVerdictsError: more lack one than is allowed.
            PastaError: see ``ask``.
        """
        asked = [one for one in comparisons if one.first != one.second]
        outcomes = self.ask(asked)
        names = [one.prompt_id for one in asked]
        missing = missing_verdicts(zip(names, outcomes, strict=True))
        num_missing = sum(map(len, missing.values()))
        if num_missing > self.max_missing * len(outcomes):
            raise MissingVerdictsError(
                f"{self.name} gave no verdict on {num_missing} of {len(outcomes)} comparisons: "
                f"{describe_missing(missing)}",
                hint="run again to ask for what has no reply; one that says nothing stays as it is",
            )
        for problem, some in missing.items():
            self.missing.setdefault(problem, []).extend(some)
        given = (None if wins is None else verdict_of(wins) for _, (wins, _) in outcomes)
        return [verdict_of(0.5) if one.first == one.second else next(given) for one in comparisons]

    def key(self, comparison: Comparison) -> str:
        """Return the name of a comparison: all that the reply depends on, hashed."""
        parts = [self.model, self.template.sha256, *comparison[1:]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]

    def estimate(self, comparisons: Sequence[Comparison]) -> Estimate:
        """Return what it would take to ask about what is not stored."""
        asked = [self.template.request(one) for one in self._wanted(comparisons).values()]
        prompt = sum(guessed_tokens(request.messages) for request in asked)
        tokens = Tokens(prompt, len(asked) * self.template.expected_reply_tokens)
        return Estimate(len(asked), tokens, self.prices)

    def spending(self) -> Spending:
        """Return what all stored replies of this model cost, at the prices of today."""
        spent = Spending(self.prices)
        for row in self.journal.rows.values():
            if row["judge"] == self.model:
                spent.count(_tokens_of(row))
        return spent

    def usage(self) -> dict[str, int]:
        """Return how many tokens the stored replies took."""
        tokens = self.spending().tokens
        return {"prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion}

    def _wanted(self, comparisons: Sequence[Comparison]) -> dict[str, Comparison]:
        """Return by key what has no reply yet; nobody is asked about equal answers."""
        keyed = {self.key(one): one for one in comparisons if one.first != one.second}
        return {key: one for key, one in keyed.items() if key not in self.journal.rows}

    def _read(self, key: str) -> Reading:
        row = self.journal.rows.get(key)
        if row is None:
            return Reading(None, Problem.NO_REPLY)
        return read_verdict(self.template.method, read_reply(row["reply"]))

    def _ask(self, wanted: Mapping[str, Comparison], client: Callable[[], ChatClient]) -> None:
        """Ask about all that nobody has asked about meanwhile."""
        with held(self.journal.path.with_name(f"{self.journal.path.name}.lock")):
            self.journal.read_again()
            rows, spent = self.journal.rows, self.spending()
            names = {key: one.prompt_id for key, one in wanted.items() if key not in rows}
            requests = {key: self.template.request(wanted[key]) for key in names}
            numbers = count(1)

            def keep(key: str, request: ChatRequest, reply: ChatReply) -> None:
                tokens = billed(reply, most_tokens(request))
                self.journal.append([self._row(key, names[key], tokens, dict(reply.raw))])
                spent.count(tokens)
                self.progress(next(numbers), len(requests), spent)

            asking = Asking(requests, Budget(spent, self.cost_limit_usd), keep)
            try:
                asyncio.run(asking.run(client))
            finally:
                self.failures.update(asking.failures)
            if asking.stopped_by == INTERRUPT:
                raise KeyboardInterrupt
            if asking.stopped_by:
                left = sum(key not in rows for key in requests)
                raise CostLimitError(
                    f"the cost limit of {self.cost_limit_usd:g} USD leaves {left} comparisons "
                    f"without a reply; spent in all: {spent}",
                    hint="raise it and go on: what was paid for is kept",
                )

    def _row(self, key: str, prompt_id: str, tokens: Tokens, reply: dict[str, Any]) -> Row:
        return {
            "id": key,
            "prompt_id": prompt_id,
            "judge": self.model,
            "template": self.template.name,
            "template_sha256": self.template.sha256,
            "tokens": tokens,
            "reply": reply,
        }


def missing_verdicts(outcomes: Iterable[tuple[str, Outcome]]) -> dict[Problem, list[str]]:
    """Return by reason the names of what has no verdict, each as often as it was asked about."""
    found: dict[Problem, list[str]] = {}
    for name, outcome in outcomes:
        if outcome.reading.problem:
            found.setdefault(outcome.reading.problem, []).append(name)
    return found


def describe_missing(missing: Mapping[Problem, Sequence[str]]) -> str:
    """Return for each reason how many comparisons it left without a verdict, in words."""
    return ", ".join(f"{problem} {len(names)}" for problem, names in missing.items())


def missing_to_json(missing: Mapping[Problem, Sequence[str]], what: str) -> dict[str, Any]:
    """Return the same as a report has it: by reason ``count``, and the names under ``what``."""
    return {
        problem.value: {"count": len(names), what: list(dict.fromkeys(names))}
        for problem, names in missing.items()
    }


def _tokens_of(row: Row) -> Tokens:
    """Return what a stored reply cost; one from before that was written down says it itself."""
    usage = row["reply"].get("usage") or {}
    names = ("prompt_tokens", "completion_tokens")
    return Tokens(*(row.get("tokens") or (int(usage.get(name) or 0) for name in names)))


def is_scripted(row: Row) -> bool:
    """Tell whether a stored reply came from a script: it says so in one of two places."""
    reply = row["reply"]
    names = (row.get("judge"), reply.get("model"), reply.get("system_fingerprint"))
    return any(str(name).startswith(SCRIPTED) for name in names)
