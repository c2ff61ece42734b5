"""Annotated data on disk: one line of JSON per prompt with its answer, see ``docs/language.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Row, parse_object, read_lines, write_rows
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import escape

Turn = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """A prompt and its annotated answer; of a conversation, its last turn."""

    id: str
    prompt: str
    document: Document  # spaces stand after tags, whoever annotated it
    source: str = ""
    reasoning: str | None = None  # the thought before the answer
    turns: tuple[Turn, ...] = ()
    """The messages before the prompt; an earlier answer may have its written form, ``response``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "document", self.document.with_spaces_after_tags())

    @property
    def messages(self) -> list[Turn]:
        """Return the turns of the chat template; earlier answers are without tags, as served."""
        turns = [
            {**turn, "content": _answer(turn).plain_text} if turn["role"] == "assistant" else turn
            for turn in self.turns
        ]
        return [*turns, {"role": "user", "content": self.prompt}]

    def each_answer(self) -> Iterator[Record]:
        """Yield a record for each answer of the conversation, which ends there."""
        for place, turn in enumerate(self.turns):
            if turn["role"] == "assistant":
                prompt, thought = self.turns[place - 1]["content"], turn.get("reasoning_content")
                facts = _answer(turn), self.source, thought, self.turns[: place - 1]
                yield Record(f"{self.id}/{place}", prompt, *facts)
        yield self


class BrokenLine(NamedTuple):
    """A line that could not be read."""

    line: int
    reason: str
    hint: str | None


def read_records(path: Path) -> list[Record]:
    """Read annotated data; every row must have a prompt."""
    records, problems = read_annotated(path, needs_prompt=True)
    if problems:
        line, reason, hint = problems[0]
        raise InputError(f"{path}:{line}: {reason}", hint=hint)
    return records


def read_annotated(
    path: Path, limit: int | None = None, *, needs_prompt: bool = False
) -> tuple[list[Record], list[BrokenLine]]:
    """Read annotated data and the problems of its broken lines, gzipped if named ``.gz``.

    A row has the written form under ``response`` or the annotator form under ``annotated``; its
    prompt under ``messages``, ``prompt`` or ``instruction``. Without an ``id`` its line is its id.
    """
    records, problems = list[Record](), list[BrokenLine]()
    for number, line in enumerate(read_lines(path), start=1):
        if limit is not None and len(records) >= limit:
            break
        if not line.strip():
            continue
        try:
            record = _record(parse_object(line), number)
            if needs_prompt and not record.prompt:
                raise InputError("no prompt: no 'messages', 'prompt' or 'instruction'")
            records.append(record)
        except PastaError as exc:
            problems.append(BrokenLine(number, exc.message.split("\n")[0], exc.hint))
    return records, problems


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records atomically; one that could not be read again is an ``InputError``."""
    write_rows(path, [_row(record) for record in records])


def read_ids(path: Path) -> list[str]:
    """Read a file of ids: one per line, or the ``id`` of each JSON object."""
    ids = []
    for number, line in enumerate(read_lines(path), start=1):
        text = line.strip()
        try:
            ids += [str(json.loads(text)["id"])] if text.startswith("{") else [text] * bool(text)
        except (ValueError, KeyError) as exc:
            hint = 'an id, or an object with "id"'
            raise InputError(f"{path}:{number}: no id: {cause(exc)}", hint=hint) from exc
    return ids


def _written(turn: Row | Turn) -> object:
    if turn.get("role") != "assistant" or isinstance(turn.get("response"), str):
        return turn.get("response", turn.get("content"))
    content = turn.get("content")
    return escape(content) if isinstance(content, str) else None


def _answer(turn: Turn) -> Document:
    return parse(str(_written(turn)), Form.WRITTEN)


def _record(row: Row, number: int) -> Record:
    prompt, turns, last = _conversation(row)
    if last and (row.get("response") or row.get("annotated")):
        raise InputError("the last answer stands both in 'messages' and beside them")
    row = {**row, **last}
    if isinstance(row.get("response"), str):
        document = parse(row["response"], Form.WRITTEN)
    elif isinstance(row.get("annotated"), str):
        document = parse(row["annotated"], Form.ANNOTATOR)
    else:
        raise InputError("no 'response' (written form) and no 'annotated' (annotator form)")
    if not document.plain_text:
        raise InputError("the answer is empty")
    name = number if row.get("id") in (None, "") else row["id"]
    thought, source = row.get("reasoning_content"), str(row.get("source") or "")
    return Record(str(name), prompt, document, source, thought, turns)


def _conversation(row: Row) -> tuple[str, tuple[Turn, ...], Row]:
    messages = row.get("messages")
    if messages is None:
        texts = (row.get(key) for key in ("prompt", "instruction"))
        return next((text for text in texts if isinstance(text, str)), ""), (), {}
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InputError("'messages' must be a list of objects")
    if not all(isinstance(_written(message), str) for message in messages):
        raise InputError("'messages' must have texts under 'content'")
    messages = [{"role": "user", **message} for message in messages]
    roles = [str(message["role"]) for message in messages]
    last: Row = {}
    if roles[-1:] == ["assistant"]:  # a whole conversation: its last answer is the record's
        (*messages, last), (*roles, _) = messages, roles
        last = {"response": _written(last), "reasoning_content": last.get("reasoning_content")}
    if {*roles} <= {"user", "system"}:
        return "\n\n".join(message["content"] for message in messages), (), last
    talk = roles[roles[0] == "system" :]
    if [*talk] != [("user", "assistant")[place % 2] for place in range(len(talk) // 2 * 2 + 1)]:
        raise InputError("'messages' must be questions and answers in turn, as of a conversation")
    return messages[-1]["content"], tuple(messages[:-1]), last


def _row(record: Record) -> Row:
    document = record.document
    for part, text in (("prompt", record.prompt), ("answer", document.plain_text)):
        if not text:
            raise InputError(f"record {record.id}: its {part} is empty")
    messages = [*record.turns, {"role": "user", "content": record.prompt}]
    has_lengths = all(block.units is not None for block in document.blocks)
    answer = {"response" if has_lengths else "annotated": document.program}
    thought = {} if record.reasoning is None else {"reasoning_content": record.reasoning}
    return {"id": record.id, "messages": messages, **thought, **answer, "source": record.source}
