"""Answer sequentially, but check several guessed tokens in one pass: the same answer, sooner.

What a user would otherwise switch on. Prompt lookup guesses that what followed the last few tokens
before follows them again; a draft model's guesses come from ``engines/torch/drafting.py``. Tokens
are those of the sequential strategy, guess or no guess: a wrong one is taken back.

Source: Leviathan et al. 2023 (speculative decoding), arXiv 2211.17192; Saxena 2023 (prompt lookup).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pasta_lm.engines.request import Guess, Request, SamplingParams
from pasta_lm.strategies import sequential

LOOKUP = "prompt-lookup"
DRAFT = "draft-model"
NUM_GUESSES = 4
"""Fastest of 2, 4, 6, 8, 12 on development prompts (``benchmarks/guesses.py``)."""
LONGEST_MATCH = 3


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Guesses by looking up the last tokens in what stands before them.

    Attributes:
        num_guesses: How many tokens are guessed at most.
        longest: With how many tokens the search begins; it ends with one.
    """

    num_guesses: int = NUM_GUESSES
    longest: int = LONGEST_MATCH

    def __call__(self, ids: Sequence[int]) -> Sequence[int]:
        """Return what followed the newest earlier place that ends as the ids end."""
        for size in range(min(self.longest, len(ids) - 1), 0, -1):
            ending = list(ids[-size:])
            for end in range(len(ids) - 1, size - 1, -1):
                if ids[end - 1] == ending[-1] and list(ids[end - size : end]) == ending:
                    return ids[end : end + self.num_guesses]
        return ()


def request(prompt: Sequence[int], params: SamplingParams, guess: Guess, strategy: str) -> Request:
    """Return what to ask of an engine.

    Args:
        prompt: Token ids.
        params: How to sample; one sample.
        guess: Where guesses come from.
        strategy: The name for the trace.
    """
    return replace(sequential.request(prompt, params), guess=guess, strategy=strategy)
