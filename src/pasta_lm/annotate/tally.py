"""What an annotation run has done and spent, and what it will cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pasta_lm.annotate.filters import Bounds
from pasta_lm.annotate.log import FAILED, OK, SKIPPED, RowLog
from pasta_lm.annotate.recipe import TeacherConfig
from pasta_lm.annotate.sources import SourceRow
from pasta_lm.annotate.teacher import Conversation
from pasta_lm.remote.budget import (
    CHARACTERS_PER_TOKEN,
    Prices,
    Spending,
    Tokens,
    guessed_tokens,
)
from pasta_lm.remote.chat import ChatReply, read_reply

ANSWER_SHARE = 1.15
"""Tokens of a copy over tokens of its answer: a guess, tags included."""
REPLIES_PER_ROW = 1.2
"""A guess: some copies go back."""
TOKENS_PER_S = 50.0
"""At which a teacher writes: a guess."""


class Tally:
    """Rows and tokens of one output folder, all its runs together."""

    def __init__(self, teacher: TeacherConfig | None) -> None:
        """Begin with nothing."""
        self.num_rows: Counter[str] = Counter()
        """By status: ``ok``, ``failed``, ``skipped``."""
        self.reasons: Counter[tuple[str, str]] = Counter()
        """By status and reason."""
        self.spent = Spending(teacher.prices if teacher else Prices())
        self._counted: dict[int, tuple[str, str]] = {}

    @property
    def num_ended(self) -> int:
        """Return ok + failed + skipped."""
        return sum(self.num_rows[status] for status in (OK, FAILED, SKIPPED))

    @property
    def num_replies(self) -> int:
        """Return how many replies came."""
        return self.spent.num_replies

    @property
    def tokens(self) -> Tokens:
        """Return what all replies took."""
        return self.spent.tokens

    @property
    def cost_usd(self) -> float:
        """Return what was spent; 0 where no price is given."""
        return self.spent.cost_usd

    @property
    def has_prices(self) -> bool:
        """Tell whether costs are known."""
        return self.spent.prices.are_known

    def count_row(self, row: RowLog) -> None:
        """Count a row that is on disk already, with its replies."""
        for raw in row.replies:
            self.count_reply(read_reply(raw))
        if row.skipped is not None or row.end is not None or row.num_unanswered:
            self.count_end(row)

    def count_reply(self, reply: ChatReply) -> None:
        """Count a reply that is on disk."""
        self.spent.count(Tokens(reply.prompt_tokens, reply.completion_tokens))

    def count_end(self, row: RowLog) -> None:
        """Count how a row ended; a row that was asked again counts as it ended last."""
        before = self._counted.get(row.index)
        if before is not None:
            self.num_rows[before[0]] -= 1
            self.reasons[before] -= 1
        self._counted[row.index] = row.status, row.reason
        self.num_rows[row.status] += 1
        self.reasons[row.status, row.reason] += 1


def request_tokens(talk: Conversation) -> Tokens:
    """Return what the next request of a conversation can take at most, its prompt guessed."""
    return Tokens(guessed_tokens(talk.messages), talk.max_tokens)


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
    tokens = Tokens(prompt, completion)
    cost = teacher.prices.cost_usd(tokens) if teacher.prices.are_known else None
    wall_s = completion / TOKENS_PER_S / teacher.max_in_flight
    return Estimate(num_rows, num_skipped, tokens, cost, wall_s)
