"""The PASTA strategy: the model marks independent parts, and threads decode them in parallel.

Source: PASTA, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import Join, PositionStrategy

NAME = "pasta"


def request(
    prompt: Sequence[int],
    params: SamplingParams,
    positions: PositionStrategy = PositionStrategy.PREDICT,  # the paper's choice
    join: Join = Join.SHARED,  # the paper's choice
) -> Request:
    """Return the request for a prompt.

    ``positions`` says where main goes on after a promise, ``join`` what it sees after a sync.
    """
    return Request(prompt=prompt, params=params, positions=positions, join=join, strategy=NAME)
