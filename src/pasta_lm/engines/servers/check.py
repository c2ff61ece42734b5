"""Check that a stock server holds the expected model, before it takes a response.

Its ids of a text and of the tags must be the vocabulary's, it must keep to barred tokens, and its
rows of the tags must be trained. Other weights of the same family are not told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pasta_lm.engines.servers.dialects import TokenRequest
from pasta_lm.errors import EndpointError, ModelError, RequestError, VocabularyError
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    MAX_UNITS,
    PROMISE_OPEN,
    SYNC,
    closing_piece,
)
from pasta_lm.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from pasta_lm.engines.servers.completions import ServedModel
    from pasta_lm.engines.servers.streaming import Connection

TEXT = "Rivers: 12,345 km - na\u00efve caf\u00e9, \u65e5\u672c.\n\n\tdef f(a_b): pass"
TAGS = (PROMISE_OPEN, closing_piece(1), ASYNC_OPEN, ASYNC_CLOSE, SYNC, closing_piece(MAX_UNITS))
QUESTION = "Describe spring, summer, autumn and winter."
MAX_TOPIC_TOKENS = 24
"""A taught model ends a topic, which has three words, within so many tokens."""
ADVICE = "serve what pasta export MODEL OUT --merged wrote, and name that folder with --model"


async def check_server(
    connection: Connection, expected: ServedModel, *, checks_tags: bool = True
) -> None:
    """Check one server that was introduced; ``checks_tags``: the tags' rows must be trained.

    Raises:
        VocabularyError: it encodes a text or the tags otherwise.
        ModelError: it has never learned where a topic ends.
        EndpointError: it samples tokens that were barred.
        RemoteError: it does not answer.
    """
    vocabulary = expected.vocabulary
    await _check_ids(connection, vocabulary)
    prompt = vocabulary.encode_prompt([{"role": "user", "content": QUESTION}])
    await _check_bars(connection, prompt)
    if checks_tags and vocabulary.has_pieces and expected.trained_strategy == "pasta":
        await _check_tag_rows(connection, vocabulary, prompt)


async def _check_ids(connection: Connection, vocabulary: Vocabulary) -> None:
    prefix = vocabulary.prompt_prefix
    own = vocabulary.encode_prompt(TEXT)[len(prefix) :]
    ids = await _ids(connection, TEXT)
    if ids is None:
        return
    if tuple(ids[: len(prefix)]) == prefix:
        ids = ids[len(prefix) :]
    if list(ids) != own:
        raise VocabularyError(
            f"{connection.server.url} has another tokenizer: it encodes {TEXT[:12]!r} as "
            f"{list(ids)[:5]}, the model's as {own[:5]}",
            hint=ADVICE,
        )
    if not vocabulary.has_pieces:
        return
    pieces = [vocabulary.piece_id(piece) for piece in TAGS]
    ids = await _ids(connection, "".join(TAGS)) or ()
    if [token for token in ids if token in pieces] != pieces:
        raise VocabularyError(
            f"{connection.server.url} has other tags than the model: it encodes them as "
            f"{list(ids)[:8]}, the model's ids are {pieces}",
            hint=ADVICE,
        )


async def _ids(connection: Connection, text: str) -> Sequence[int] | None:
    """Return the server's ids of a text; None if it has no page that encodes."""
    dialect, model = connection.known
    try:
        reply = await connection.ask(dialect.tokenize_path, dialect.tokenize_body(model, text))
        return dialect.tokens(reply)
    except (EndpointError, RequestError, KeyError, TypeError, ValueError):
        return None  # a version, or something in front of it, that has no such page


async def _check_bars(connection: Connection, prompt: Sequence[int]) -> None:
    chosen = await _greedy(connection, TokenRequest(prompt=prompt, max_tokens=1))
    barred = TokenRequest(prompt=prompt, max_tokens=1, barred=chosen)
    if chosen and await _greedy(connection, barred) == chosen:
        raise EndpointError(
            f"{connection.server.url} chose token {chosen[0]}, which the request barred",
            hint="it must keep to logit_bias: PASTA's tags are legal in some places only",
        )


async def _check_tag_rows(
    connection: Connection, vocabulary: Vocabulary, prompt: Sequence[int]
) -> None:
    closing = [vocabulary.piece_id(closing_piece(units)) for units in range(1, MAX_UNITS + 1)]
    opened = [*prompt, vocabulary.piece_id(PROMISE_OPEN)]
    topic = TokenRequest(prompt=opened, max_tokens=MAX_TOPIC_TOKENS, stop_ids=closing)
    decoded = await _greedy(connection, topic)
    if not set(closing).intersection(decoded):
        raise ModelError(
            f"{connection.server.url} holds a model that was not taught the tags: it began a "
            f"promise with {vocabulary.text(decoded)[:40]!r} and did not end it",
            hint=f"{ADVICE}; --allow-inexact uses it all the same",
        )


async def _greedy(connection: Connection, request: TokenRequest) -> list[int]:
    """Return the ids of a completion, with the one at which the server stopped."""
    token_ids: list[int] = []
    async for piece in connection.stream(request):
        token_ids += piece.token_ids
        if piece.matched is not None and token_ids[-1:] != [piece.matched]:
            token_ids.append(piece.matched)
    return token_ids
