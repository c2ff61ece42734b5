"""Annotated data on disk: one line of JSON per prompt with its answer, see ``docs/language.md``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Row, parse_object, parse_unique, read_lines, write_rows
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import escape
from pasta_lm.learn.data import THOUGHT, Turn, check_read, messages_of, messages_with

THOUGHT_KEYS = (THOUGHT, "thinking")  # as the server's: gpt-oss reads the second


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
        return messages_with(map(_served, self.turns), self.prompt)

    def without_tags(self) -> Record:
        return replace(self, document=self.document.without_tags())

    def each_answer(self) -> Iterator[Record]:
        for index, turn in enumerate(self.turns):
            if turn["role"] == "assistant":
                prompt, thought = self.turns[index - 1]["content"], turn.get(THOUGHT)
                facts = answer_of(turn), self.source, thought, self.turns[: index - 1]
                yield Record(f"{self.id}/{index}", prompt, *facts)
        yield self


class BrokenLine(NamedTuple):
    """A line that could not be read."""

    line: int
    reason: str
    hint: str | None


def read_records(path: Path) -> list[Record]:
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
    prompt under the keys of ``learn.data``. Without an ``id`` its line is its id.
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
                raise InputError("no prompt: no 'messages', 'prompt', 'instruction' or 'question'")
            records.append(record)
        except PastaError as exc:
            problems.append(BrokenLine(number, exc.message.split("\n")[0], exc.hint))
    return records, problems


def write_records(path: Path, records: Iterable[Record]) -> None:
    write_rows(path, [_row(record) for record in records])


def read_ids(path: Path) -> list[str]:
    """Read a file of ids: one per line, or the ``id`` of each JSON object."""
    ids = []
    for number, line in enumerate(read_lines(path), start=1):
        text = line.strip()
        try:
            ids += [str(parse_unique(text)["id"])] if text.startswith("{") else [text] * bool(text)
        except (ValueError, KeyError) as exc:
            hint = 'an id, or an object with "id"'
            raise InputError(f"{path}:{number}: no id: {cause(exc)}", hint=hint) from exc
    return ids


def answer_of(turn: Turn) -> Document:
    """Return the answer of a turn, whose text has no tags unless it is a ``response``."""
    written, text = turn.get("response"), turn.get("content", "")
    document = parse(escape(text) if written is None else written, Form.WRITTEN)
    if written is not None:
        check_read({"content": text}, (), {"": document.plain_text})
    return document


def _served(turn: Turn) -> Turn:
    """Return a turn as the server gives it to the chat template, whose thought has two keys."""
    if turn["role"] != "assistant":
        return turn
    thought = dict.fromkeys(THOUGHT_KEYS, turn[THOUGHT]) if THOUGHT in turn else {}
    return {"role": "assistant", "content": answer_of(turn).plain_text, **thought}


def _record(row: Row, number: int) -> Record:
    turns = messages_of(row)
    key = next((key for key in ("response", "annotated") if row.get(key)), None)
    if turns and turns[-1]["role"] == "assistant":  # a whole conversation: its last answer is ours
        *turns, last = turns
        if key is not None or (row.get(THOUGHT) and THOUGHT in last):
            raise InputError("the last answer stands both in 'messages' and beside them")
        document, thought = answer_of(last), last.get(THOUGHT, row.get(THOUGHT))
    elif key is None or not isinstance(row[key], str):
        raise InputError("no 'response' (written form) and no 'annotated' (annotator form)")
    else:
        document = parse(row[key], Form.WRITTEN if key == "response" else Form.ANNOTATOR)
        thought = row.get(THOUGHT)
    if not document.plain_text:
        raise InputError("the answer is empty")
    if not isinstance(thought, str | None):
        raise InputError(f"{THOUGHT!r} is no text")
    check_read(row, turns, {key or "": document.plain_text, THOUGHT: thought})
    roles = [turn["role"] for turn in turns]
    pairs = zip(["", *roles], [*roles, "assistant"], strict=True)
    if roles and any(role == "assistant" and before != "user" for before, role in pairs):
        reason = "'messages' must be questions and answers in turn, the last a question"
        raise InputError(reason, hint=f"they are: {', '.join(roles)}")
    for turn in turns:
        _served(turn)  # an earlier answer must be one, too
    prompt = turns[-1]["content"] if turns else ""
    name = number if row.get("id") in (None, "") else row["id"]
    source = str(row.get("source") or "")
    return Record(str(name), prompt, document, source, thought, tuple(turns[:-1]))


def _row(record: Record) -> Row:
    document = record.document
    for part, text in (("prompt", record.prompt), ("answer", document.plain_text)):
        if not text:
            raise InputError(f"record {record.id}: its {part} is empty")
    messages = messages_with(record.turns, record.prompt)
    has_lengths = all(block.units is not None for block in document.blocks)
    answer = {"response" if has_lengths else "annotated": document.program}
    thought = {} if record.reasoning is None else {THOUGHT: record.reasoning}
    return {"id": record.id, "messages": messages, **thought, **answer, "source": record.source}
