"""A judge that is played, not asked: it prefers the answer with more words.

For tests and rehearsals behind ``testing/scripted_server.py``. What it says is nobody's judgement,
and no win rate is made of it. ``python -m pasta_lm.testing.scripted_judge --port 8002`` serves it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from pasta_lm.remote.chat import Candidate, TokenLogprob
from pasta_lm.testing.scripted_server import Play, ScriptedReply
from pasta_lm.testing.serving import serve, server_arguments

_ANSWERS = re.compile(r'<answer name="[AB]">\n(.*?)\n</answer>', re.DOTALL)


def prefer_more_words(asked: Mapping[str, Any]) -> ScriptedReply:
    """State a verdict on two answers, surer the more their lengths differ; also as one token.

    Raises:
        ValueError: the request holds no two answers to compare.
    """
    first, second = (len(text.split()) for text in asked_answers(asked["messages"]))
    share = (first + 1) / (first + second + 2)
    confidence = round(100 * max(share, 1 - share))
    winner = "tie" if first == second else "A" if first > second else "B"
    top = (Candidate("A", log(share)), Candidate("B", log(1 - share)))
    token = TokenLogprob(*max(top, key=lambda one: one.logprob), top)
    text = f"It has more words.\n\nVerdict: {winner}, confidence: {confidence}"
    return ScriptedReply(token.token if asked.get("logprobs") else text, (token,))


def mute_at_times(play: Play, share: float) -> Play:
    """Return a judge that names neither answer for a share of the requests, the same each time."""

    def muted(asked: Mapping[str, Any]) -> ScriptedReply:
        said = str(asked["messages"][-1]["content"])
        place = int(hashlib.sha256(said.encode()).hexdigest()[:8], 16) / 2**32
        return ScriptedReply("I cannot tell.") if place < share else play(asked)

    return muted


def asked_answers(messages: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """Return the two answers that a judge is asked to compare, A first.

    Raises:
        ValueError: there are none in these messages.
    """
    found = _ANSWERS.findall(messages[-1]["content"])
    if len(found) < 2:
        raise ValueError("no two answers in these messages")
    return found[0], found[-1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a scripted judge until interrupted."""
    parser = server_arguments("An OpenAI-compatible server that plays a judge", 8002)
    parser.add_argument("--mute", type=float, default=0.0, help="share without a verdict")
    given = parser.parse_args(arguments)
    serve(mute_at_times(prefer_more_words, given.mute), given)


if __name__ == "__main__":
    main()
