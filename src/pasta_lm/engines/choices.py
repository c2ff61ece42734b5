"""How likely the texts of threads are; closed sets of texts, scored instead of decoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, fsum, log, log1p

Ids = tuple[int, ...]
SMALLEST = 1e-12  # what is left of 1 at the least where nearly all goes on as another member


@dataclass(frozen=True)
class Choices:
    """The tokens of the members. What several begin with is fed once, last tokens are not fed."""

    members: tuple[Ids, ...]

    @cached_property
    def beginnings(self) -> tuple[Ids, ...]:
        """Return all that a member goes on behind: (), then each after its own beginning."""
        whole = {member[:size] for member in self.members for size in range(len(member))}
        return tuple(sorted(whole))

    def next_tokens(self, beginning: Ids) -> list[int]:
        size = len(beginning)
        behind = (m[size] for m in self.members if len(m) > size and m[:size] == beginning)
        return [*dict.fromkeys(behind)]

    def shares(self, logprobs: Mapping[Ids, Mapping[int, float]]) -> tuple[float, ...]:
        """Return the probability of each member, as a share of that of all.

        ``logprobs`` are those of the next tokens behind each beginning. A member that others begin
        with counts as far as the text does not go on as one of them.
        """
        scores = [self._score(member, logprobs) for member in self.members]
        weights = [exp(score - max(scores)) for score in scores]
        return tuple(weight / fsum(weights) for weight in weights)

    @staticmethod
    def _score(member: Ids, logprobs: Mapping[Ids, Mapping[int, float]]) -> float:
        score = fsum(logprobs[member[:size]][token] for size, token in enumerate(member))
        going_on = fsum(map(exp, logprobs.get(member, {}).values()))
        return score + (log1p(-going_on) if going_on < 1 - SMALLEST else log(SMALLEST))


@dataclass(slots=True)
class Confidences:
    """How likely the texts of a response are, by thread."""

    logprobs: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    shares: dict[int, tuple[float, ...]] = field(default_factory=dict)  # of members of a closed set

    @property
    def probabilities(self) -> dict[int, float]:
        likeliest = {thread: max(shares) for thread, shares in self.shares.items()}
        return {thread: exp(logprob) for thread, logprob in self.logprobs.items()} | likeliest
