"""A scripted judge for tests and rehearsals: it prefers the answer with more words.

No win rate is computed from its verdicts. ``python -m tests.fakes.scripted_judge --port 8002``
serves it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from math import log
from typing import Any

from tests.fakes.scripted_server import Play, ScriptedReply, serve

_ANSWERS = re.compile(r'<answer name="[AB]">\n(.*?)\n</answer>', re.DOTALL)


def answers_of(said: str) -> tuple[str, str]:
    """Return the two answers that a judge is asked to compare, A first."""
    first, *_, last = _ANSWERS.findall(said)
    return first, last


def prefer_more_words(asked: Mapping[str, Any]) -> ScriptedReply:
    """Return a verdict on two answers, with a confidence that grows with the length difference."""
    first, second = (len(text.split()) for text in answers_of(asked["messages"][-1]["content"]))
    share = (first + 1) / (first + second + 2)
    confidence = round(100 * max(share, 1 - share))
    winner = "tie" if first == second else "A" if first > second else "B"
    top = {"A": log(share), "B": log(1 - share)}
    text = f"It has more words.\n\nVerdict: {winner}, confidence: {confidence}"
    return ScriptedReply(max(top, key=top.__getitem__) if asked.get("logprobs") else text, top)


def mute_at_times(play: Play, share: float) -> Play:
    """Return a judge that names neither answer in a fixed share of the requests."""

    def muted(asked: Mapping[str, Any]) -> ScriptedReply:
        said = str(asked["messages"][-1]["content"])
        place = int(hashlib.sha256(said.encode()).hexdigest()[:8], 16) / 2**32
        return ScriptedReply("I cannot tell.") if place < share else play(asked)

    return muted


if __name__ == "__main__":
    serve(prefer_more_words)
