"""Speculative decoding: several guessed tokens of each thread are checked in one pass.

The tokens are those of the strategy without guesses, sequential or PASTA; wrong guesses are removed
from the cache. Prompt lookup finds an earlier occurrence of the last few tokens, and guesses the
tokens that followed it.
The draft model is in ``engines/torch/drafting.py``.

Source: Leviathan et al. 2023 (speculative decoding), arXiv 2211.17192; Saxena 2023 (prompt lookup).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pasta_lm.engines.request import Guess, Request, SamplingParams
from pasta_lm.strategies import sequential

LOOKUP = "prompt-lookup"
DRAFT = "draft-model"
PASTA_LOOKUP = "pasta-prompt-lookup"
PASTA_DRAFT = "pasta-draft-model"
NUM_GUESSES = 4  # fastest of 2, 4, 6, 8, 12 on development prompts


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Guesses by looking up the last tokens among those before them."""

    num_guesses: int = NUM_GUESSES
    max_match: int = 3  # tokens that are looked up at first; then one fewer, down to one

    def __call__(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens that followed the newest earlier match of the last tokens."""
        for size in range(min(self.max_match, len(ids) - 1), 0, -1):  # longer matches guess better
            ending = list(ids[-size:])
            for end in range(len(ids) - 1, size - 1, -1):  # at least one token follows each match
                # The last token is compared first: this runs in every pass, and slices cost time.
                if ids[end - 1] == ending[-1] and list(ids[end - size : end]) == ending:
                    return ids[end : end + self.num_guesses]
        return ()


def request(prompt: Sequence[int], params: SamplingParams, guess: Guess, strategy: str) -> Request:
    """Return the sequential request for a prompt of token ids, with guesses."""
    return replace(sequential.request(prompt, params), guess=guess, strategy=strategy)
