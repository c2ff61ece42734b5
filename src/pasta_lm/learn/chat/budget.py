"""Costs of requests: tokens, prices, an estimate beforehand, and a hard limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pasta_lm.errors import PastaError, UsageError
from pasta_lm.learn.chat.chat import ChatReply, ChatRequest, Message

CHARACTERS_PER_TOKEN = 4
"""A cautious guess for English, where the model's tokenizer is not available."""
MAX_TEMPLATE_TOKENS = 16
"""Tokens that a chat template puts around one turn."""


class CostLimitError(PastaError):
    """Report that a further request could exceed the cost limit."""


class TokenCounts(NamedTuple):
    """Tokens of one or of many requests."""

    prompt: int
    completion: int


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a model in US dollars per million tokens; None: unknown."""

    input: float | None = None
    output: float | None = None

    def __post_init__(self) -> None:
        """Raise a UsageError if one of the two is missing, or one is negative."""
        if (self.input is None) != (self.output is None):
            raise UsageError("the prices of input and output go together", hint="give both")
        if min(self.input or 0.0, self.output or 0.0) < 0:
            raise UsageError("a price is below 0")

    @property
    def are_known(self) -> bool:
        """Return whether costs can be computed."""
        return self.input is not None

    def cost_usd(self, tokens: TokenCounts) -> float:
        """Return the cost of tokens; 0 if the prices are unknown."""
        return (tokens.prompt * (self.input or 0) + tokens.completion * (self.output or 0)) / 1e6


class Spending:
    """The tokens of all stored replies and their cost."""

    def __init__(self, prices: Prices) -> None:
        """Begin with nothing."""
        self.prices = prices
        self.num_replies = 0
        self.tokens = TokenCounts(0, 0)

    @property
    def cost_usd(self) -> float:
        """Return the total cost; 0 if the prices are unknown."""
        return self.prices.cost_usd(self.tokens)

    def count(self, tokens: TokenCounts) -> None:
        """Add a reply that is on disk."""
        self.num_replies += 1
        prompt, completion = self.tokens
        self.tokens = TokenCounts(prompt + tokens.prompt, completion + tokens.completion)

    def __str__(self) -> str:
        """Return it in words."""
        cost = f", {format_usd(self.cost_usd)}" if self.prices.are_known else ""
        return f"{self.tokens.prompt} tokens in, {self.tokens.completion} out{cost}"


class Budget:
    """Hard limit on total cost; requests that could exceed it are not sent."""

    def __init__(self, spending: Spending, limit_usd: float | None) -> None:
        """Set the limit; raises a UsageError if there is one and no prices."""
        require_prices(spending.prices, limit_usd)
        self._spending = spending
        self._limit_usd = limit_usd
        self._reserved: list[TokenCounts] = []
        self._changed = asyncio.Condition()

    async def reserve(self, tokens: TokenCounts) -> bool:
        """Wait until a request fits beside those in flight; return False if it never will."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._fits(tokens) or not self._reserved)
            if not self._fits(tokens):
                return False
            self._reserved.append(tokens)
            return True

    async def release(self, tokens: TokenCounts) -> None:
        """Return a reservation; the actual cost is counted in ``Spending`` by then."""
        async with self._changed:
            self._reserved.remove(tokens)
            self._changed.notify_all()

    def _fits(self, tokens: TokenCounts) -> bool:
        reserved_usd = sum(map(self._spending.prices.cost_usd, [*self._reserved, tokens]))
        limit_usd = self._limit_usd
        return limit_usd is None or self._spending.cost_usd + reserved_usd <= limit_usd


def require_prices(prices: Prices, limit_usd: float | None) -> None:
    """Raise a UsageError if there is a cost limit and no prices."""
    if limit_usd is not None and not prices.are_known:
        raise UsageError(
            "a cost limit needs prices",
            hint="give those of input and output, in US dollars for a million tokens",
        )


class Estimate(NamedTuple):
    """Requests and tokens that a run will need, estimated from text lengths."""

    num_requests: int
    tokens: TokenCounts
    prices: Prices

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate multiplied by a factor."""
        tokens = TokenCounts(*(round(count * factor) for count in self.tokens))
        return Estimate(round(self.num_requests * factor), tokens, self.prices)

    def __str__(self) -> str:
        """Return it in words."""
        prompt, completion = map(_rounded, self.tokens)
        cost = f"about {format_usd(self.prices.cost_usd(self.tokens))}"
        return (
            f"{self.num_requests} requests, about {prompt} tokens in, {completion} out, "
            f"{cost if self.prices.are_known else 'no prices given'}"
        )


def format_usd(amount: float) -> str:
    """Return an amount in US dollars as text; small amounts with more digits."""
    return f"{amount:.2f} USD" if amount >= 1 else f"{amount:.4f} USD"


def estimate_tokens(messages: Sequence[Message]) -> int:
    """Return the approximate number of tokens of messages."""
    return _num_bytes(messages) // CHARACTERS_PER_TOKEN


def max_tokens(request: ChatRequest) -> TokenCounts:
    """Return an upper bound of the tokens of a request: no token is shorter than one byte."""
    if request.max_tokens is None:
        raise ValueError("the length of the reply has no bound")
    template = MAX_TEMPLATE_TOKENS * (len(request.messages) + 1)
    return TokenCounts(_num_bytes(request.messages) + template, request.max_tokens)


def billed_tokens(reply: ChatReply, most: TokenCounts) -> TokenCounts:
    """Return the tokens that the server reports for a reply, or ``most`` if it reports none."""
    reported = TokenCounts(reply.prompt_tokens, reply.completion_tokens)
    return reported if any(reported) else most


def stored_tokens(row: Mapping[str, Any], reply: Mapping[str, Any]) -> TokenCounts:
    """Return the tokens of a stored reply: its row's own count, or the server's report."""
    usage = reply.get("usage") or {}
    names = ("prompt_tokens", "completion_tokens")
    return TokenCounts(*(row.get("tokens") or (int(usage.get(name) or 0) for name in names)))


def _rounded(number: int) -> str:
    return f"{number / 1e6:.2f} M" if number >= 100_000 else f"{number / 1e3:.1f} k"


def _num_bytes(messages: Sequence[Message]) -> int:
    return sum(len(message["content"].encode()) for message in messages)
