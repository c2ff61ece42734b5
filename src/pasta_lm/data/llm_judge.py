"""A language model as judge: asked once about each comparison, every raw reply kept.

A reply is on the disk before it counts, under the hash of all that it depends on. So a stopped run
pays for nothing twice, and every figure can be computed again without asking.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from pasta_lm.data.journal import Journal, Row
from pasta_lm.data.judge import Comparison, Verdict, Winner
from pasta_lm.data.judge_template import JudgeTemplate
from pasta_lm.data.verdict_reading import Problem, Reading, read_verdict, verdict_of
from pasta_lm.errors import PastaError, RemoteError, RequestError
from pasta_lm.remote.chat import read_reply
from pasta_lm.remote.client import ChatClient

SCRIPTED = "scripted"
"""A model whose name begins so says what it was told to: what it gives is no judgement."""
NUM_WORKERS = 64
"""Comparisons that are taken up at once; the client's pace decides how many are in flight."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much is done, and of how much."""


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
        allow_missing: In ``compare``: a comparison without a verdict counts as a tie.
        progress: Told after each reply.
        failures: By key, why a comparison has no reply; of this run alone.
    """

    model: str
    template: JudgeTemplate
    journal: Journal
    client: Callable[[], ChatClient] | None = None
    allow_missing: bool = False
    progress: Progress = lambda name, done, total: None
    failures: dict[str, str] = field(default_factory=dict)

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

        Raises:
            EndpointError: the key, the model or the address is wrong; what came before is kept.
        """
        keys = [self.key(comparison) for comparison in comparisons]
        if self.client is not None:
            wanted = {
                key: comparison
                for key, comparison in zip(keys, comparisons, strict=True)
                if key not in self.journal.rows
            }
            if wanted:
                asyncio.run(self._ask(wanted))
        return [Outcome(key, self._read(key)) for key in keys]

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Return a verdict on each comparison, in order.

        Raises:
            MissingVerdictsError: some have none, and that is not allowed.
            EndpointError: see ``ask``.
        """
        outcomes = self.ask(comparisons)
        problems = Counter(
            outcome.reading.problem for outcome in outcomes if outcome.reading.problem
        )
        if problems and not self.allow_missing:
            counts = ", ".join(f"{problem} {count}" for problem, count in problems.items())
            raise MissingVerdictsError(
                f"{self.name} gave no verdict on {problems.total()} of {len(outcomes)} "
                f"comparisons: {counts}",
                hint="run again to ask for what has no reply; one that says nothing stays as it is",
            )
        return [
            Verdict(Winner.TIE, 0.0) if wins is None else verdict_of(wins)
            for _, (wins, _) in outcomes
        ]

    def key(self, comparison: Comparison) -> str:
        """Return the name of a comparison: all that the reply depends on, hashed."""
        parts = [self.model, self.template.sha256, *comparison[1:]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]

    def usage(self) -> dict[str, int]:
        """Return how many tokens all stored replies cost."""
        rows = [row["reply"].get("usage") or {} for row in self.journal.rows.values()]
        names = ("prompt_tokens", "completion_tokens")
        return {name: sum(int(row.get(name) or 0) for row in rows) for name in names}

    def _read(self, key: str) -> Reading:
        row = self.journal.rows.get(key)
        if row is None:
            return Reading(None, Problem.NO_REPLY)
        return read_verdict(self.template.method, read_reply(row["reply"]))

    async def _ask(self, wanted: dict[str, Comparison]) -> None:
        """Ask about all, a bounded number at a time; the first wrong endpoint ends it."""
        assert self.client is not None
        queue = iter(wanted.items())
        numbers = count(1)

        def done() -> None:
            self.progress("judge", next(numbers), len(wanted))

        async with self.client() as client:
            tasks = [
                asyncio.create_task(self._work(client, queue, done))
                for _ in range(min(NUM_WORKERS, len(wanted)))
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(
        self, client: ChatClient, queue: Iterator[tuple[str, Comparison]], done: Callable[[], None]
    ) -> None:
        for key, comparison in queue:
            try:
                reply = await client.complete(self.template.request(comparison))
            except (RemoteError, RequestError) as exc:
                self.failures[key] = exc.message
            else:
                self.journal.append([self._row(key, comparison, dict(reply.raw))])
            done()

    def _row(self, key: str, comparison: Comparison, reply: dict[str, Any]) -> Row:
        return {
            "id": key,
            "prompt_id": comparison.prompt_id,
            "judge": self.model,
            "template": self.template.name,
            "template_sha256": self.template.sha256,
            "reply": reply,
        }


def is_scripted(row: Row) -> bool:
    """Tell whether a stored reply came from a script: it says so in one of two places."""
    reply = row["reply"]
    names = (row.get("judge"), reply.get("model"), reply.get("system_fingerprint"))
    return any(str(name).startswith(SCRIPTED) for name in names)
