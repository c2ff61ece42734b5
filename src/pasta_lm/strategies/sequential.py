"""Answer from first token to last: no tag can be sampled, nothing forks.

The yardstick of every speedup. The same engine as every other strategy, with one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pasta_lm.engines.encoded_document import EncodedDocument
from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.language.document import Document

if TYPE_CHECKING:
    from pasta_lm.engines.vocabulary import Vocabulary

NAME = "sequential"


def request(prompt: Sequence[int], params: SamplingParams) -> Request:
    """Return what to ask of an engine.

    Args:
        prompt: Token ids.
        params: How to sample.
    """
    return Request(prompt=prompt, params=params, forks=False, strategy=NAME)


def replay(
    prompt: Sequence[int], document: Document, vocabulary: Vocabulary, params: SamplingParams
) -> Request:
    """Return the request that decodes a given answer with its tags stripped."""
    ids = vocabulary.encode_text(document.plain_text)
    forced = EncodedDocument(main=tuple(ids), blocks=())
    return Request(prompt=prompt, params=params, forks=False, forced=forced, strategy=NAME)
