"""What requests cost, and where asking must stop: tokens, prices, what was spent, a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pasta_lm.errors import PastaError, UsageError
from pasta_lm.remote.chat import ChatReply, ChatRequest, Message

CHARACTERS_PER_TOKEN = 4
"""A cautious guess for English, where the model's tokenizer is not at hand."""
TOKENS_AROUND = 16
"""That a chat template puts around a turn, at most."""


class CostLimitError(PastaError):
    """Report that nothing more may be asked without a risk to pass the limit."""


class Tokens(NamedTuple):
    """Tokens of one request or of many."""

    prompt: int
    completion: int


@dataclass(frozen=True, slots=True)
class Prices:
    """What a model costs, in US dollars for a million tokens; both are known, or neither is."""

    input: float | None = None
    """Of what is sent."""
    output: float | None = None
    """Of what comes back."""

    def __post_init__(self) -> None:
        """Check that they go together.

        Raises:
            UsageError: they do not, or one is below 0.
        """
        if (self.input is None) != (self.output is None):
            raise UsageError("the prices of input and output go together", hint="give both")
        if min(self.input or 0.0, self.output or 0.0) < 0:
            raise UsageError("a price is below 0")

    @property
    def are_known(self) -> bool:
        """Tell whether costs can be computed."""
        return self.input is not None

    def cost_usd(self, tokens: Tokens) -> float:
        """Return what tokens cost; 0 where no price is given."""
        sent = tokens.prompt * (self.input or 0.0)
        return (sent + tokens.completion * (self.output or 0.0)) / 1e6


class Spending:
    """What was paid for, all runs together."""

    def __init__(self, prices: Prices) -> None:
        """Begin with nothing."""
        self.prices = prices
        self.num_replies = 0
        self.tokens = Tokens(0, 0)

    @property
    def cost_usd(self) -> float:
        """Return what was spent; 0 where no price is given."""
        return self.prices.cost_usd(self.tokens)

    def count(self, tokens: Tokens) -> None:
        """Count a reply that is on disk."""
        self.num_replies += 1
        prompt, completion = self.tokens
        self.tokens = Tokens(prompt + tokens.prompt, completion + tokens.completion)

    def __str__(self) -> str:
        """Return it in words."""
        cost = f", {dollars(self.cost_usd)}" if self.prices.are_known else ""
        return f"{self.tokens.prompt} tokens in, {self.tokens.completion} out{cost}"


class Budget:
    """Lets a request begin only if all that is in flight stays below a limit at its dearest."""

    def __init__(self, spending: Spending, limit_usd: float | None) -> None:
        """Keep the limit.

        Raises:
            UsageError: there is a limit and no price.
        """
        require_prices(spending.prices, limit_usd)
        self._spending = spending
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
        """Give back what was reserved; what it did cost is counted by then, or will be."""
        async with self._changed:
            self._reserved.remove(tokens)
            self._changed.notify_all()

    def _fits(self, tokens: Tokens) -> bool:
        if self._limit_usd is None:
            return True
        dearest = sum(map(self._spending.prices.cost_usd, [*self._reserved, tokens]))
        return self._spending.cost_usd + dearest <= self._limit_usd


def require_prices(prices: Prices, limit_usd: float | None) -> None:
    """Refuse a limit that nobody could hold.

    Raises:
        UsageError: there is a limit and no price.
    """
    if limit_usd is not None and not prices.are_known:
        raise UsageError(
            "a cost limit needs prices",
            hint="give those of input and output, in US dollars for a million tokens",
        )


class Estimate(NamedTuple):
    """What asking would take, guessed from the length of what is asked."""

    num_requests: int
    tokens: Tokens
    prices: Prices

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate for so many times as much."""
        tokens = Tokens(*(round(count * factor) for count in self.tokens))
        return Estimate(round(self.num_requests * factor), tokens, self.prices)

    def __str__(self) -> str:
        """Return it in words."""
        cost = dollars(self.prices.cost_usd(self.tokens))
        return (
            f"{self.num_requests} requests, about {_rounded(self.tokens.prompt)} tokens in, "
            f"{_rounded(self.tokens.completion)} out, "
            + (f"about {cost}" if self.prices.are_known else "no prices given")
        )


def dollars(amount_usd: float) -> str:
    """Return an amount in words; small ones with more digits."""
    return f"{amount_usd:.2f} USD" if amount_usd >= 1 else f"{amount_usd:.4f} USD"


def guessed_tokens(messages: Sequence[Message]) -> int:
    """Return how many tokens messages may have."""
    return _num_bytes(messages) // CHARACTERS_PER_TOKEN


def most_tokens(request: ChatRequest) -> Tokens:
    """Return what a request can take at its dearest: no token is shorter than a byte.

    Raises:
        ValueError: it has no ``max_tokens``.
    """
    if request.max_tokens is None:
        raise ValueError("what may come back has no bound")
    around = TOKENS_AROUND * (len(request.messages) + 1)
    return Tokens(_num_bytes(request.messages) + around, request.max_tokens)


def billed(reply: ChatReply, most: Tokens) -> Tokens:
    """Return what a reply cost: what the server says, at its dearest where it says nothing."""
    said = Tokens(reply.prompt_tokens, reply.completion_tokens)
    return said if any(said) else most


def _rounded(number: int) -> str:
    return f"{number / 1e6:.2f} M" if number >= 100_000 else f"{number / 1e3:.1f} k"


def _num_bytes(messages: Sequence[Message]) -> int:
    return sum(len(one["content"].encode()) for one in messages)
