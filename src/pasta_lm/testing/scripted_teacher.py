"""A teacher that is played, not asked: recorded replies, or marks by rule with planned mistakes.

For tests and rehearsals behind ``testing/scripted_server.py``. What it marks is nobody's judgement.

``python -m pasta_lm.testing.scripted_teacher --port 8001`` serves it; ``--replies journal.jsonl``
plays back the replies of an earlier run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pasta_lm.annotate.filters import Bounds
from pasta_lm.annotate.sources import SourceRow
from pasta_lm.annotate.teacher import Conversation, asked_answer
from pasta_lm.journal import read_rows
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Text
from pasta_lm.remote.chat import read_reply
from pasta_lm.testing.scripted_server import Play, ScriptedReply
from pasta_lm.testing.serving import serve, server_arguments

LEAST_WORDS = 5
_PARAGRAPH = re.compile(r"\S[\s\S]*?(?=\n\s*\n|\s*\Z)")


def marked(answer: str) -> str:
    """Return an answer with every longer paragraph a block, if there are two of them."""
    places = [one.span() for one in _PARAGRAPH.finditer(answer)]
    places = [(a, b) for a, b in places if len(answer[a:b].split()) >= LEAST_WORDS]
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
    """Return a copy with a mistake that a filter must find."""
    at = len(annotated) // 2
    return f"{annotated[:at]}#{annotated[at:]}"


def teacher_by_rule(wrong: float = 0.0, hopeless: float = 0.0) -> Play:
    """Return a teacher that marks paragraphs, and errs on some answers.

    Args:
        wrong: Share of the answers whose first copy is spoiled.
        hopeless: Share of the answers whose every copy is.
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
    """Return a teacher that gives the replies that stand in the journal of a run.

    Raises:
        InputError: it is no journal.
    """
    rows = read_rows(path)
    texts = {row["index"]: row for row in rows if row["id"].startswith("row/")}
    talks: dict[int, Conversation] = {}
    known: dict[str, ScriptedReply] = {}
    for row in rows:
        if not row["id"].startswith("reply/"):
            continue
        text = texts[row["index"]]
        source = SourceRow(text["row_id"], text["prompt"], text["answer"])
        new = Conversation(source.prompt, source.answer, bounds=Bounds())
        talk = talks.setdefault(row["index"], new)
        reply = read_reply(row["raw"])
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
    parser = server_arguments("An OpenAI-compatible server that plays a teacher", 8001)
    parser.add_argument("--replies", type=Path, help="journal.jsonl of an earlier run")
    parser.add_argument("--wrong", type=float, default=0.0, help="share of first copies spoiled")
    parser.add_argument("--hopeless", type=float, default=0.0, help="share never right")
    given = parser.parse_args(arguments)
    by_rule = teacher_by_rule(given.wrong, given.hopeless)
    serve(teacher_by_record(given.replies) if given.replies else by_rule, given)


if __name__ == "__main__":
    main()
