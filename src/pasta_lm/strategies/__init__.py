"""Ways to answer a prompt; all use one engine and one kind of trace.

``pasta`` is what a ``Request`` is without more. The others are here or have a file of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pasta_lm.engines.request import Guesser, Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.parser import Form

PASTA, SEQUENTIAL, APAR = "pasta", "sequential", "apar"
# A fork promises no length, so no gap can be computed: parent and child both count on from it.
APAR_POSITIONS = PositionStrategy.CONTINUE

Prompt = str | Sequence[Mapping[str, Any]]
"""A text is the user's message; messages have ``role`` and ``content``."""


def sequential_request(
    prompt: Sequence[int], params: SamplingParams, guesser: Guesser | None = None,
    strategy: str = SEQUENTIAL,
) -> Request:  # fmt: skip
    """Return the request of one thread, in which no tag can be sampled.

    With a guesser, passes check several guessed tokens (speculative decoding); the tokens are the
    same, and ``strategy`` names the guesses.
    """
    return Request(prompt=prompt, params=params, forks=False, guesser=guesser, strategy=strategy)


def apar_request(prompt: Sequence[int], params: SamplingParams) -> Request:
    """Return the request of APAR: at a fork the parent goes on, the child writes its details.

    A fork has no topic and no promised length, and no thread ever joins another. It is written with
    PASTA's opening promise piece and read by a grammar of its own. Source: Liu et al. 2024,
    arXiv 2401.06761, section 3.
    """
    return Request(
        prompt=prompt, params=params, positions=APAR_POSITIONS, form=Form.FORKED, strategy=APAR
    )
