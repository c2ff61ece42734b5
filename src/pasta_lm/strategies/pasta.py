"""The PASTA strategy: the model marks independent parts, and threads decode them in parallel.

Source: PASTA, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.language.document import Document

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

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


def replay(
    prompt: Sequence[int],
    document: Document,
    vocabulary: Vocabulary,
    params: SamplingParams,
    positions: PositionStrategy = PositionStrategy.PREDICT,
    join: Join = Join.SHARED,
) -> Request:
    """Return the request that decodes a given annotated answer."""
    forced = vocabulary.encode_document(document)  # a block without a promised length gets its own
    return replace(request(prompt, params, positions, join), forced=forced)
