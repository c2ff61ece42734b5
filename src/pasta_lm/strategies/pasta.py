"""Answer as PASTA does: the model marks independent chunks, threads decode them at once.

Source: PASTA, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Document

if TYPE_CHECKING:
    from pasta_lm.engines.vocabulary import Vocabulary

NAME = "pasta"


def request(
    prompt: Sequence[int],
    params: SamplingParams,
    positions: PositionStrategy = PositionStrategy.PREDICT,
) -> Request:
    """Return what to ask of an engine.

    Args:
        prompt: Token ids.
        params: How to sample.
        positions: How main's positions treat blocks that are not there yet.
    """
    return Request(prompt=prompt, params=params, positions=positions, strategy=NAME)


def replay(
    prompt: Sequence[int],
    document: Document,
    vocabulary: Vocabulary,
    params: SamplingParams,
    positions: PositionStrategy = PositionStrategy.PREDICT,
) -> Request:
    """Return the request that decodes a given annotated answer, one token a live thread a pass."""
    forced = vocabulary.encode_document(document)
    return Request(prompt=prompt, params=params, positions=positions, forced=forced, strategy=NAME)
