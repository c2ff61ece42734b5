"""Speculative decoding: the strategies whose passes check several guessed tokens of each thread.

The tokens are those of the strategy without guesses, sequential or PASTA. ``engines/guesses.py``
has prompt lookup, ``engines/local/drafting.py`` the draft model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pasta_lm.engines.request import Guesser, Request, SamplingParams
from pasta_lm.strategies import sequential

LOOKUP = "prompt-lookup"
DRAFT = "draft-model"
PASTA_LOOKUP = "pasta-prompt-lookup"
PASTA_DRAFT = "pasta-draft-model"


def request(
    prompt: Sequence[int], params: SamplingParams, guesser: Guesser, strategy: str
) -> Request:
    """Return the sequential request for a prompt of token ids, with guesses."""
    return replace(sequential.request(prompt, params), guesser=guesser, strategy=strategy)
