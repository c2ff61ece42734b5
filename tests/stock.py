"""Stock servers that play written answers, and engines in front of them."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from pasta_lm.engines.request import Answer
from pasta_lm.engines.servers.client import RetryPolicy
from pasta_lm.engines.servers.cluster import StockServer
from pasta_lm.engines.servers.completions import CompletionsEngine, ServedModel
from pasta_lm.language.tags import PIECES, PROMISE_OPEN, closing_piece
from pasta_lm.models.encoded import EncodedDocument
from pasta_lm.models.vocabulary import Vocabulary
from tests.fakes.stock_server import Draw, NextToken, StockTestServer, Tokenize
from tests.plain_sequences import Ids, plain_sequences

QUICK = RetryPolicy(max_requests=4, first_delay_s=0.01, max_delay_s=0.05, max_busy_s=300.0)


def playing(
    vocabulary: Vocabulary, eos_id: int, *answers: tuple[Sequence[int], EncodedDocument]
) -> NextToken:
    """Return what decodes written answers, each behind its prompt, as plain causal sequences."""
    following: dict[Ids, int] = {}
    for prompt, answer in answers:
        sequences = plain_sequences(vocabulary, prompt, answer)
        sequences[0, -1] = tuple(prompt)
        for (thread, index), ids in sequences.items():
            # A sync is chosen behind main's own sequence, and read behind the written form.
            if (thread, index + 1) in sequences:
                following[ids] = sequences[thread, index + 1][-1]

    opening = vocabulary.piece_ids.get(PROMISE_OPEN)

    def next_token(ids: Sequence[int], barred: Set[int], draw: Draw) -> int:
        expected = following.get(tuple(ids))
        if expected is not None:
            return expected
        if ids[-1] == opening:  # a check of the server, whose model is taught
            return vocabulary.piece_id(closing_piece(1))
        return 0 if eos_id in barred else eos_id

    return next_token


def spelled(vocabulary: Vocabulary) -> Tokenize:
    """Return what encodes a text in which tags are tags, as a server does."""
    split = re.compile("|".join(f"({re.escape(piece)})" for piece in PIECES))

    def tokenize(text: str) -> list[int]:
        if not split.search(text):
            return vocabulary.encode_prompt(text)
        ids: list[int] = []
        for part in filter(None, split.split(text)):
            tag = part in PIECES
            ids += [vocabulary.piece_id(part)] if tag else vocabulary.encode_text(part)
        return ids

    return tokenize


def engine_at(
    *servers: StockTestServer, vocabulary: Vocabulary, eos_id: int, timeout_s: float = 60.0,
    num_again: int = 0,
) -> CompletionsEngine:  # fmt: skip
    """Return an engine in front of test servers."""
    found = [StockServer(one.url, timeout_s=timeout_s, policy=QUICK) for one in servers]
    served = ServedModel(vocabulary, frozenset({eos_id}))
    return CompletionsEngine(found, served, checks=False, num_again=num_again)


def tokens_by_thread(answer: Answer) -> dict[int, list[int | None]]:
    threads = [thread.id for thread in answer.trace.threads]
    return {one: [token.token for token in answer.trace.tokens_of(one)] for one in threads}
