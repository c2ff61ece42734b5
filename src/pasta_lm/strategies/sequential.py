"""The sequential strategy: one thread decodes the answer from the first token to the last.

It runs in the same engine as all other strategies, so a speedup over it compares strategies alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pasta_lm.engines.request import Guesser, Request, SamplingParams
from pasta_lm.language.document import Document
from pasta_lm.models.encoded import EncodedDocument

if TYPE_CHECKING:
    from pasta_lm.models.vocabulary import Vocabulary

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


def replay(
    prompt: Sequence[int], document: Document, vocabulary: Vocabulary, params: SamplingParams
) -> Request:
    """Return the request that decodes a given answer with its tags stripped."""
    # Encoded as one text: stretches between tags, encoded alone, can have more tokens together.
    forced = EncodedDocument(main=tuple(vocabulary.encode_text(document.plain_text)), blocks=())
    return replace(request(prompt, params), forced=forced)
