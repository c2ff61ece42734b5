"""A language model as judge, with one request for each comparison.

Every raw reply is stored before it counts, under a hash of everything that it depends on. So a run
that was stopped pays for nothing twice, and verdicts can be read again without requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pasta_lm.errors import PastaError
from pasta_lm.journal import Journal, held
from pasta_lm.learn.chat.client import ChatClient, ChatReply, Prices, TokenCounts, read_reply
from pasta_lm.learn.chat.pool import (
    INTERRUPT,
    Budget,
    CostLimitError,
    Estimate,
    RequestPool,
    Spending,
    estimate_tokens,
    max_tokens,
)
from pasta_lm.learn.judge.judge import (
    EXPECTED_STATED_TOKENS,
    Comparison,
    JudgeTemplate,
    Method,
    NoVerdict,
    Reading,
    Verdict,
    read_verdict,
    verdict_of,
)

SCRIPTED = "scripted"
"""A model whose name begins with this follows a script, so its verdicts are not judgements."""
Progress = Callable[[int, int, Spending], None]
"""Called with the replies of this run, the number requested, and the total spending."""


class MissingVerdictsError(PastaError):
    """Report that a judge left comparisons without a verdict."""


@dataclass(frozen=True, slots=True)
class LLMJudge:
    """A ``Judge`` that asks a model."""

    model: str
    template: JudgeTemplate
    journal: Journal
    client: Callable[[], ChatClient] | None = None  # None: only stored replies are read.
    max_missing: float = 0.0  # Largest share of comparisons without a verdict.
    prices: Prices = Prices()
    cost_limit_usd: float | None = None  # On all stored replies of this model.
    progress: Progress = lambda done, total, spent: None
    failures: dict[str, str] = field(default_factory=dict)  # Of this run, by key.
    missing: dict[NoVerdict, list[str]] = field(default_factory=dict)  # Prompts, by reason.

    @property
    def name(self) -> str:
        """Return the model and the template, as reports show them."""
        return f"{self.model}/{self.template.name}"

    @property
    def is_scripted(self) -> bool:
        """Return whether this judge, or the author of any stored reply, follows a script."""
        names: list[Any] = [self.model]
        for row in self.journal.rows.values():
            reply = row["reply"]
            names += [row.get("judge"), reply.get("model"), reply.get("system_fingerprint")]
        return any(str(name).startswith(SCRIPTED) for name in names)

    def ask(self, comparisons: Sequence[Comparison]) -> list[Reading]:
        """Return the reading of each comparison, in order; only those without a reply are asked.

        Replies that came before an error, a cost limit or an interrupt are kept.
        """
        wanted = self._wanted(comparisons)
        if wanted and self.client is not None:
            lock = self.journal.path.with_name(f"{self.journal.path.name}.lock")
            with held(lock):
                self.journal.read_again()
                self._ask(self._wanted(comparisons), self.client)
        rows, method = self.journal.rows, self.template.method
        keys = [self.key(pair) for pair in comparisons]
        replies = {key: read_reply(rows[key]["reply"]) for key in keys if key in rows}
        readings = {key: read_verdict(method, reply) for key, reply in replies.items()}
        return [readings.get(key, Reading(None, NoVerdict.NO_REPLY)) for key in keys]

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict | None]:
        """Return a verdict on each comparison, in order; None where the judge gave none.

        Equal answers are a tie, without asking.
        """
        different = [pair for pair in comparisons if pair.first != pair.second]
        readings = self.ask(different)
        names = [comparison.prompt_id for comparison in different]
        missing = missing_verdicts(zip(names, readings, strict=True))
        num_missing = sum(map(len, missing.values()))
        if num_missing > self.max_missing * len(readings):
            raise MissingVerdictsError(
                f"{self.name} gave no verdict on {num_missing} of {len(readings)} comparisons: "
                f"{describe_missing(missing)}",
                hint="run again to ask for missing replies; stored ones are final",
            )
        for problem, some in missing.items():
            self.missing.setdefault(problem, []).extend(some)
        verdicts = (None if wins is None else verdict_of(wins) for wins, _ in readings)
        tie = verdict_of(0.5)
        return [tie if pair.first == pair.second else next(verdicts) for pair in comparisons]

    def key(self, comparison: Comparison) -> str:
        """Return the key of a comparison: a hash of everything that the reply depends on."""
        parts = [self.model, self.template.sha256, *comparison[1:]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]

    def estimate(self, comparisons: Sequence[Comparison]) -> Estimate:
        """Estimate the requests for comparisons that have no stored reply."""
        requests = [self.template.request(pair) for pair in self._wanted(comparisons).values()]
        prompt = sum(estimate_tokens(request.messages) for request in requests)
        is_one_token = self.template.method is Method.LOGPROBS
        expected = len(requests) * (1 if is_one_token else EXPECTED_STATED_TOKENS)
        tokens = TokenCounts(prompt, expected)
        return Estimate(len(requests), tokens, self.prices)

    def spending(self) -> Spending:
        """Return the spending on all stored replies of this model, at today's prices."""
        spent = Spending(self.prices)
        for row in self.journal.rows.values():
            if row["judge"] == self.model:
                most = TokenCounts(*row.get("tokens", (0, 0)))
                spent.count(read_reply(row["reply"]).billed(most))
        return spent

    def usage(self) -> dict[str, int]:
        """Return the tokens of the stored replies, as OpenAI's JSON names them."""
        tokens = self.spending().tokens
        return {"prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion}

    def _wanted(self, comparisons: Sequence[Comparison]) -> dict[str, Comparison]:
        keyed = {self.key(pair): pair for pair in comparisons if pair.first != pair.second}
        return {key: pair for key, pair in keyed.items() if key not in self.journal.rows}

    def _ask(self, wanted: Mapping[str, Comparison], client: Callable[[], ChatClient]) -> None:
        spent, numbers = self.spending(), count(1)
        pool = RequestPool(Budget(spent, self.cost_limit_usd), "requests")

        async def work(job: tuple[str, Comparison]) -> None:
            key, comparison = job
            request = self.template.request(comparison)
            most = max_tokens(request)

            def keep(reply: ChatReply) -> None:
                tokens = reply.billed(most)
                row = {
                    "id": key,
                    "prompt_id": comparison.prompt_id,
                    "judge": self.model,
                    "template": self.template.name,
                    "template_sha256": self.template.sha256,
                    "tokens": tokens,
                    "reply": dict(reply.raw),
                }
                self.journal.append([row])
                spent.count(tokens)
                self.progress(next(numbers), len(wanted), spent)

            def fail(error: PastaError) -> None:
                self.failures[key] = error.message

            await pool.ask(request, most, keep, fail)

        asyncio.run(pool.run(client, iter(wanted.items()), work))
        if pool.stopped_by == INTERRUPT:
            raise KeyboardInterrupt
        if pool.stopped_by:
            num_left = sum(key not in self.journal.rows for key in wanted)
            raise CostLimitError(
                f"the cost limit of {self.cost_limit_usd:g} USD leaves {num_left} comparisons "
                f"without a reply; spent in all: {spent}",
                hint="raise it and run again: paid replies are kept",
            )


def missing_verdicts(readings: Iterable[tuple[str, Reading]]) -> dict[NoVerdict, list[str]]:
    """Return the names of comparisons without a verdict, by reason; a name may occur twice."""
    missing: dict[NoVerdict, list[str]] = {}
    for name, (_, problem) in readings:
        if problem:
            missing.setdefault(problem, []).append(name)
    return missing


def describe_missing(missing: Mapping[NoVerdict, Sequence[str]]) -> str:
    return ", ".join(f"{problem} {len(names)}" for problem, names in missing.items())


def missing_to_json(missing: Mapping[NoVerdict, Sequence[str]], what: str) -> dict[str, Any]:
    """Return for each reason a ``count``, and the names, each once, under the key ``what``."""
    return {
        problem.value: {"count": len(names), what: list(dict.fromkeys(names))}
        for problem, names in missing.items()
    }
