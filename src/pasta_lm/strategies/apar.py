"""Answer as APAR does: at a fork the parent goes on with what comes next, the child writes details.

One piece forks: no topic, no length, no sync, and positions leave no gap. Nothing is ever joined,
so no text can depend on what a child wrote. The piece is the promise's opening one, read by a
table of its own (``Form.FORKED``): every taught model has it, and APAR needs no other tokens.

Source: Liu et al. 2024, "APAR: LLMs Can Do Auto-Parallel Auto-Regressive Decoding",
arXiv 2401.06761, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.document import Document
from pasta_lm.language.parser import Form

if TYPE_CHECKING:
    from pasta_lm.engines.vocabulary import Vocabulary

NAME = "apar"
POSITIONS = PositionStrategy.CONTINUE
"""Each of APAR's sequences counts on from its prefix."""


def request(prompt: Sequence[int], params: SamplingParams) -> Request:
    """Return what to ask of an engine.

    Args:
        prompt: Token ids.
        params: How to sample.
    """
    return Request(
        prompt=prompt, params=params, positions=POSITIONS, form=Form.FORKED, strategy=NAME
    )


def replay(
    prompt: Sequence[int], document: Document, vocabulary: Vocabulary, params: SamplingParams
) -> Request:
    """Return the request that decodes a given answer; its blocks are what children write.

    Raises:
        VocabularyError: the answer has a sync, which APAR cannot say.
    """
    forced = vocabulary.encode_document(document, Form.FORKED)
    return Request(
        prompt=prompt,
        params=params,
        positions=POSITIONS,
        form=Form.FORKED,
        forced=forced,
        strategy=NAME,
    )
