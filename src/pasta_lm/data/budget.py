"""What a run has done and spent, what it will cost, and where it must stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pasta_lm.data.annotate_config import TeacherConfig
from pasta_lm.data.annotation_log import FAILED, OK, SKIPPED, RowLog
from pasta_lm.data.filters import Bounds
from pasta_lm.data.sources import SourceRow
from pasta_lm.data.teacher import CHARACTERS_PER_TOKEN, Conversation
from pasta_lm.errors import UsageError
from pasta_lm.remote.chat import ChatReply, read_reply

ANSWER_SHARE = 1.15
"""Tokens of a copy over tokens of its answer: a guess, tags included."""
REPLIES_PER_ROW = 1.2
"""A guess: some copies go back."""
TOKENS_PER_S = 50.0
"""At which a teacher writes: a guess."""


class Tokens(NamedTuple):
    """Tokens of one request or of many."""

    prompt: int
    completion: int


class Tally:
    """Rows and tokens of one output folder, all its runs together."""

    def __init__(self, teacher: TeacherConfig | None) -> None:
        """Begin with nothing."""
        self.num_rows: Counter[str] = Counter()
        """By status: ``ok``, ``failed``, ``skipped``."""
        self.reasons: Counter[tuple[str, str]] = Counter()
        """By status and reason."""
        self.num_replies = 0
        self.tokens = Tokens(0, 0)
        self._teacher = teacher
        self._counted: dict[int, tuple[str, str]] = {}

    @property
    def num_ended(self) -> int:
        """Return ok + failed + skipped."""
        return sum(self.num_rows[status] for status in (OK, FAILED, SKIPPED))

    @property
    def cost_usd(self) -> float:
        """Return what was spent; 0 where no price is given."""
        return self._teacher.cost_usd(*self.tokens) if self._teacher else 0.0

    def cost_of(self, tokens: Tokens) -> float:
        """Return what tokens cost."""
        return self._teacher.cost_usd(*tokens) if self._teacher else 0.0

    @property
    def has_prices(self) -> bool:
        """Tell whether costs are known."""
        return self._teacher is not None and self._teacher.input_price is not None

    def count_row(self, row: RowLog) -> None:
        """Count a row that is on disk already, with its replies."""
        for raw in row.replies:
            self.count_reply(read_reply(raw))
        if row.skipped is not None or row.end is not None or row.num_unanswered:
            self.count_end(row)

    def count_reply(self, reply: ChatReply) -> None:
        """Count a reply that is on disk."""
        self.num_replies += 1
        prompt, completion = self.tokens
        self.tokens = Tokens(prompt + reply.prompt_tokens, completion + reply.completion_tokens)

    def count_end(self, row: RowLog) -> None:
        """Count how a row ended; a row that was asked again counts as it ended last."""
        before = self._counted.get(row.index)
        if before is not None:
            self.num_rows[before[0]] -= 1
            self.reasons[before] -= 1
        self._counted[row.index] = row.status, row.reason
        self.num_rows[row.status] += 1
        self.reasons[row.status, row.reason] += 1


class Budget:
    """Lets a request begin only if all that is in flight stays below a limit at its dearest."""

    def __init__(self, tally: Tally, limit_usd: float | None) -> None:
        """Keep the limit.

        Raises:
            UsageError: there is a limit and no price.
        """
        if limit_usd is not None and not tally.has_prices:
            raise UsageError(
                "a cost limit needs prices",
                hint="give teacher.input_price and teacher.output_price",
            )
        self._tally = tally
        self._limit_usd = limit_usd
        self._reserved: list[Tokens] = []
        self._changed = asyncio.Condition()

    async def reserve(self, tokens: Tokens) -> bool:
        """Wait until a request fits beside those in flight; False: it never will."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._fits(tokens) or not self._reserved)
            if not self._fits(tokens):
                return False
            self._reserved.append(tokens)
            return True

    async def release(self, tokens: Tokens) -> None:
        """Give back what was reserved; what it did cost is in the tally by then, or will be."""
        async with self._changed:
            self._reserved.remove(tokens)
            self._changed.notify_all()

    def _fits(self, tokens: Tokens) -> bool:
        if self._limit_usd is None:
            return True
        asked = [*self._reserved, tokens]
        dearest = sum(map(self._tally.cost_of, asked))
        return self._tally.cost_usd + dearest <= self._limit_usd


def request_tokens(talk: Conversation) -> Tokens:
    """Return what the next request of a conversation can take at most, its prompt guessed."""
    said = sum(len(one["content"].encode()) for one in talk.messages)
    return Tokens(said // CHARACTERS_PER_TOKEN, talk.max_tokens)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What annotating some rows will take: guessed from their characters."""

    num_rows: int
    num_skipped: int
    tokens: Tokens
    cost_usd: float | None
    """None: no prices."""
    wall_s: float
    """With as many requests in flight as the recipe allows."""


def estimate(rows: Iterable[SourceRow], teacher: TeacherConfig) -> Estimate:
    """Return what rows will take; see the constants of this file for what is guessed."""
    num_rows = num_skipped = prompt = completion = 0
    for row in rows:
        num_rows += 1
        if row.skipped is not None:
            num_skipped += 1
            continue
        talk = Conversation(row.prompt, row.answer, bounds=Bounds())
        prompt += int(request_tokens(talk).prompt * REPLIES_PER_ROW)
        copy = len(row.answer.encode()) / CHARACTERS_PER_TOKEN * ANSWER_SHARE
        completion += int(copy * REPLIES_PER_ROW)
    cost = None if teacher.input_price is None else teacher.cost_usd(prompt, completion)
    wall_s = completion / TOKENS_PER_S / teacher.max_in_flight
    return Estimate(num_rows, num_skipped, Tokens(prompt, completion), cost, wall_s)
