"""A scripted teacher for tests and rehearsals: tags by rule and mistakes, or recorded replies.

``python -m tests.fakes.scripted_teacher --port 8001`` serves it; ``--replies journal.jsonl``
gives the replies of an earlier run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pasta_lm.journal import read_rows
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Text
from pasta_lm.language.tags import unescape
from pasta_lm.learn.annotate.teacher import TeacherConversation, unwrap
from pasta_lm.learn.chat.client import read_reply
from tests.fakes.scripted_server import Play, ScriptedReply, serve, server_arguments

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


def teacher_by_record(path: Path) -> Play:
    """Return a teacher that gives the replies of a run's journal.

    Raises:
        InputError: the file is not a journal.
    """
    talks: dict[int, TeacherConversation] = {}
    known: dict[str, ScriptedReply] = {}
    for row in read_rows(path):
        if row["id"].startswith("row/"):
            talks[row["index"]] = TeacherConversation(row["prompt"], row["answer"])
        elif row["id"].startswith("reply/"):
            talk, reply = talks[row["index"]], read_reply(row["raw"])
            known[_key(talk.messages)] = ScriptedReply(
                reply.text, refusal=reply.refusal, finish_reason=reply.finish_reason
            )
            talk.feed(reply)

    def play(asked: Mapping[str, Any]) -> ScriptedReply:
        missing = ScriptedReply("", refusal="no such request was recorded")
        return known.get(_key(asked["messages"]), missing)

    return play


def _key(messages: Sequence[Mapping[str, str]]) -> str:
    return json.dumps([dict(one) for one in messages], sort_keys=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a scripted teacher until interrupted."""
    parser = server_arguments("An OpenAI-compatible server with a scripted teacher", 8001)
    parser.add_argument("--replies", type=Path, help="journal.jsonl of an earlier run")
    parser.add_argument("--wrong", type=float, default=0.0, help="share of wrong first copies")
    parser.add_argument("--hopeless", type=float, default=0.0, help="share never copied right")
    flags = parser.parse_args(arguments)
    by_rule = teacher_by_rule(flags.wrong, flags.hopeless)
    serve(teacher_by_record(flags.replies) if flags.replies else by_rule, flags)


if __name__ == "__main__":
    main()
