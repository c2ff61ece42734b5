"""The sequential strategy: one thread decodes the answer from the first token to the last.

It runs in the same engine as all other strategies, so a speedup over it compares strategies alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from pasta_lm.engines.request import Guesser, Request, SamplingParams

NAME = "sequential"


def request(
    prompt: Sequence[int],
    params: SamplingParams,
    guesser: Guesser | None = None,
    strategy: str = NAME,
) -> Request:
    """Return the request for a prompt of token ids; no tag can be sampled.

    With a guesser, passes check several guessed tokens (speculative decoding); the tokens are the
    same, and ``strategy`` names the guesses.
    """
    return Request(prompt=prompt, params=params, forks=False, guesser=guesser, strategy=strategy)
