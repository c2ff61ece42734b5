"""The log-probabilities of an answer's tokens, in the two shapes of OpenAI's API.

They are those of the model alone, before the mask of legal tags, penalties and temperature, for
the tokens of the plain text in reading order; tags have none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate, count
from typing import Any, NamedTuple

from pasta_lm.engines.request import Answer, TokenLogprobs
from pasta_lm.interpreter.trace import Role

Spell = Callable[[int], bytes]
"""From a token id to its bytes; for tags and special tokens, those of their spelling."""


class _Token(NamedTuple):
    token: int
    scores: TokenLogprobs


def _tokens(answer: Answer) -> Iterator[_Token]:
    """Yield the tokens of the plain text, those behind a stop string left out."""
    left = len(answer.text)
    # Without points a skeleton is the answer itself, of tokens that were no content before.
    role = Role.CONTENT if answer.trace.num_content_tokens else Role.TOPIC
    indices: dict[int, count[int]] = defaultdict(count)  # each thread is in order by itself
    for record in answer.trace.in_reading_order():
        scores = answer.logprobs.get((record.thread, next(indices[record.thread])))
        if record.role is not role or record.token is None or scores is None:
            continue
        if left <= 0:
            return
        left -= len(record.text)
        yield _Token(record.token, scores)


def chat_logprobs(answer: Answer, spell: Spell) -> dict[str, Any]:
    """Return the object ``logprobs`` of a chat's choice."""

    def shown(token: int, logprob: float) -> dict[str, Any]:
        data = spell(token)
        return {"token": _text(data), "logprob": logprob, "bytes": list(data)}

    content = [
        {
            **shown(token, scores.logprob),
            "top_logprobs": [shown(*candidate) for candidate in scores.top],
        }
        for token, scores in _tokens(answer)
    ]
    return {"content": content, "refusal": None}


def text_logprobs(answer: Answer, spell: Spell) -> dict[str, Any]:
    """Return the object ``logprobs`` of a completion's choice; offsets count characters."""
    tokens = list(_tokens(answer))
    texts = [_text(spell(token)) for token, _ in tokens]
    tops = [{_text(spell(token)): value for token, value in scores.top} for _, scores in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [scores.logprob for _, scores in tokens],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": [0, *accumulate(map(len, texts))][: len(texts)],
    }


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
