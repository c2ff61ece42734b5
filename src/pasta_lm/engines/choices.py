"""A closed set of texts that is scored instead of decoded: which tokens are fed, what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
