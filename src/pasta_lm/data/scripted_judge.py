"""A judge that is played, not asked: the longer answer wins, whoever stands first.

For tests and rehearsals behind ``remote/scripted_server.py``. What it says is nobody's judgement,
so no report makes a win rate of it.

``python -m pasta_lm.data.scripted_judge --port 8002`` serves it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

from pasta_lm.remote.chat import Candidate, TokenLogprob
from pasta_lm.remote.scripted_server import Play, ScriptedReply
from pasta_lm.remote.serving import serve, server_arguments

CONFIDENCE = 0.7
_ANSWER = re.compile(r'<answer name="[AB]">\n(.*?)\n</answer>', re.DOTALL)


def judge_by_length(mute: float = 0.0) -> Play:
    """Return a judge of pages that show their answers as ours do.

    Args:
        mute: Share of the requests whose reply names neither answer.
    """

    def play(asked: Mapping[str, Any]) -> ScriptedReply:
        said = str(asked["messages"][-1]["content"])
        answers = _ANSWER.findall(said)
        place = int(hashlib.sha256(said.encode()).hexdigest()[:8], 16) / 2**32
        if len(answers) != 2 or place < mute:
            return ScriptedReply("I cannot tell.")
        better, worse = "AB" if len(answers[0]) > len(answers[1]) else "BA"
        if asked.get("logprobs"):
            top = (Candidate(better, log(CONFIDENCE)), Candidate(worse, log(1 - CONFIDENCE)))
            return ScriptedReply(better, (TokenLogprob(better, top[0].logprob, top),))
        verdict = f"Verdict: {better}, confidence: {CONFIDENCE:.0%}"
        return ScriptedReply(f"It says more.\n\n{verdict}")

    return play


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a scripted judge until interrupted."""
    parser = server_arguments("An OpenAI-compatible server that plays a judge", 8002)
    parser.add_argument("--mute", type=float, default=0.0, help="share without a verdict")
    given = parser.parse_args(arguments)
    serve(judge_by_length(given.mute), given)


if __name__ == "__main__":
    main()
