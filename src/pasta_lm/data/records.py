"""Annotated data on disk: a prompt and its answer in PASTA-LANG, a line each.

The form is that of ``docs/language.md``: ``{"id", "messages", "response", "source"}`` with the
answer in written form, or in annotator form under ``"annotated"``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError, PastaSyntaxError
from pasta_lm.language.document import Document, parse
from pasta_lm.language.parser import Form


@dataclass(frozen=True, slots=True)
class Record:
    """One prompt with the answer to learn.

    Attributes:
        id: Stable: the same in every run.
        prompt: What the user says.
        document: The answer; lengths of blocks may be None.
        source: Where it comes from.
    """

    id: str
    prompt: str
    document: Document
    source: str = ""


def read_records(path: Path) -> list[Record]:
    """Read annotated data.

    Raises:
        InputError: a line is no record; it is named by its number.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            return [
                _record(line, f"{path}, line {n}")
                for n, line in enumerate(lines, 1)
                if line.strip()
            ]
    except (OSError, UnicodeError) as exc:
        raise InputError(f"{path} cannot be read: {exc}") from exc


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write annotated data, and return how many records it was."""
    num = 0
    with path.open("w", encoding="utf-8") as file:
        for row in _rows(records):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            num += 1
    return num


def _rows(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        has_lengths = all(block.units is not None for block in record.document.blocks)
        answer = (
            {"response": record.document.written()}
            if has_lengths
            else {"annotated": record.document.annotator_form()}
        )
        messages = [{"role": "user", "content": record.prompt}]
        yield {"id": record.id, "messages": messages, **answer, "source": record.source}


def _record(line: str, place: str) -> Record:
    try:
        row = json.loads(line)
    except ValueError as exc:
        raise InputError(f"{place}: no JSON: {exc}") from exc
    if not isinstance(row, dict):
        raise InputError(f"{place}: not an object")
    return Record(
        _text(row, "id", place),
        _prompt(row, place),
        _document(row, place),
        str(row.get("source", "")),
    )


def _prompt(row: Mapping[str, Any], place: str) -> str:
    match row.get("messages"):
        case [{"role": "user", "content": str(prompt)}]:
            return prompt
        case _:
            raise InputError(f"{place}: 'messages' must hold one message of the user")


def _document(row: Mapping[str, Any], place: str) -> Document:
    key, form = ("response", Form.WRITTEN) if "response" in row else ("annotated", Form.ANNOTATOR)
    text = _text(row, key, place)
    try:
        return parse(text, form)
    except PastaSyntaxError as exc:
        raise InputError(f"{place}: {key}: {exc.message}", hint=exc.hint) from exc


def _text(row: Mapping[str, Any], key: str, place: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise InputError(f"{place}: {key!r} must be a text")
    return value
