"""A scripted teacher for tests and rehearsals: tags by rule, and mistakes.

``python -m tests.fakes.scripted_teacher --port 8001`` serves it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Text
from pasta_lm.language.tags import unescape
from pasta_lm.learn.annotate.teacher import unwrap
from tests.fakes.scripted_server import Play, ScriptedReply, serve

MIN_WORDS = 5
_PARAGRAPH = re.compile(r"\S[\s\S]*?(?=\n\s*\n|\s*\Z)")


def marked(answer: str) -> str:
    """Return an answer with every longer paragraph as a block, if it has at least two."""
    places = [one.span() for one in _PARAGRAPH.finditer(answer)]
    places = [(a, b) for a, b in places if len(answer[a:b].split()) >= MIN_WORDS]
    if len(places) < 2:
        places = []
    items: list[Item] = []
    done = 0
    for number, (start, end) in enumerate(places, start=1):
        block = Block(f"part {number}", None, (Text(answer[start:end]),))
        items += [Text(answer[done:start]), block]
        done = end
    return Document((*items, Text(answer[done:]))).annotator_form()


def spoiled(annotated: str) -> str:
    """Return a copy with a mistake that the filters find."""
    at = len(annotated) // 2
    return f"{annotated[:at]}#{annotated[at:]}"


def asked_answer(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the answer that messages ask to annotate; a ValueError if they have none."""
    for message in reversed(messages):
        if message["role"] == "user" and message["content"].startswith("Question:"):
            return unescape(unwrap(message["content"].rpartition("Answer to copy and mark:")[2]))
    raise ValueError("nothing to annotate in these messages")


def teacher_by_rule(wrong: float = 0.0, hopeless: float = 0.0) -> Play:
    """Return a teacher that marks paragraphs.

    Args:
        wrong: Share of the answers whose first copy has a mistake.
        hopeless: Share of the answers whose every copy has one.
    """

    def play(asked: Mapping[str, Any]) -> ScriptedReply:
        answer = asked_answer(asked["messages"])
        place = int(hashlib.sha256(answer.encode()).hexdigest()[:8], 16) / 2**32
        is_first = sum("cannot be used" in one["content"] for one in asked["messages"]) == 0
        copy = marked(answer)
        if place < hopeless or (is_first and place < hopeless + wrong):
            copy = spoiled(copy)
        return ScriptedReply(f"<answer>\n{copy}\n</answer>")

    return play


if __name__ == "__main__":
    serve(teacher_by_rule())
