"""Annotated data on disk: one line of JSON per prompt with its answer, see ``docs/language.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pasta_lm.errors import InputError, PastaError, cause
from pasta_lm.journal import Row, parse_object, read_lines
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form


@dataclass(frozen=True, slots=True)
class Record:
    """A prompt and its annotated answer."""

    id: str
    prompt: str
    document: Document  # spaces stand after tags, whoever annotated it
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "document", self.document.with_spaces_after_tags())


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
    """Write annotated data; a record that could not be read again is an ``InputError``."""
    rows = [_row(record) for record in records]
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    except OSError as exc:
        raise InputError(f"{path} cannot be written: {cause(exc)}") from exc


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


def _record(row: Row, number: int) -> Record:
    if isinstance(row.get("response"), str):
        document = parse(row["response"], Form.WRITTEN)
    elif isinstance(row.get("annotated"), str):
        document = parse(row["annotated"], Form.ANNOTATOR)
    else:
        raise InputError("no 'response' (written form) and no 'annotated' (annotator form)")
    if not document.plain_text:
        raise InputError("the answer is empty")
    name = number if row.get("id") in (None, "") else row["id"]
    return Record(str(name), _prompt(row), document, str(row.get("source") or ""))


def _prompt(row: Row) -> str:
    messages = row.get("messages")
    if messages is None:
        texts = (row.get(key) for key in ("prompt", "instruction"))
        return next((text for text in texts if isinstance(text, str)), "")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InputError("'messages' must be a list of objects")
    if any(message.get("role", "user") not in ("user", "system") for message in messages):
        reason = "conversations of several turns are not read"
        raise InputError(f"'messages' must be the user's: {reason}")
    contents = [message.get("content") for message in messages]
    if not all(isinstance(content, str) for content in contents):
        raise InputError("'messages' must have texts under 'content'")
    return "\n\n".join(contents)


def _row(record: Record) -> Row:
    document = record.document
    for part, text in (("prompt", record.prompt), ("answer", document.plain_text)):
        if not text:
            raise InputError(f"record {record.id}: its {part} is empty")
    messages = [{"role": "user", "content": record.prompt}]
    has_lengths = all(block.units is not None for block in document.blocks)
    answer = {"response" if has_lengths else "annotated": document.program}
    return {"id": record.id, "messages": messages, **answer, "source": record.source}
