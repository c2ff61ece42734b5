"""Annotated data on disk: one line of JSON per prompt with its answer in PASTA-LANG.

The form is that of ``docs/language.md``: ``{"id", "messages", "response", "source"}`` with the
answer in written form, or in annotator form under ``"annotated"``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError
from pasta_lm.language.document import Document
from pasta_lm.strategies.annotated import read_annotated


@dataclass(frozen=True, slots=True)
class Record:
    """One prompt with its annotated answer.

    Attributes:
        id: The same in every run.
        prompt: The user message.
        document: The answer; lengths of blocks may be None.
        source: The origin of the record.
    """

    id: str
    prompt: str
    document: Document
    source: str = ""


def read_records(path: Path) -> list[Record]:
    """Read annotated data; every row must have a prompt.

    Raises:
        InputError: the file cannot be read, or a row is not a record; its line is named.
    """
    answers, problems = read_annotated(path, needs_prompt=True)
    if problems:
        first = problems[0]
        raise InputError(f"{path}:{first.line}: {first.reason}", hint=first.hint)
    return [Record(one.id, one.prompt, one.document, one.source) for one in answers]


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write annotated data; return the number of records.

    Raises:
        InputError: a record has no prompt or answer, or the file cannot be written.
    """
    rows = [_row(record) for record in records]
    try:
        with path.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except OSError as exc:
        raise InputError(f"{path} cannot be written: {exc}") from exc
    return len(rows)


def _row(record: Record) -> dict[str, Any]:
    for part, text in (("prompt", record.prompt), ("answer", record.document.plain_text)):
        if not text:
            raise InputError(f"record {record.id}: its {part} is empty")
    has_lengths = all(block.units is not None for block in record.document.blocks)
    answer = (
        {"response": record.document.written()}
        if has_lengths
        else {"annotated": record.document.annotator_form()}
    )
    messages = [{"role": "user", "content": record.prompt}]
    return {"id": record.id, "messages": messages, **answer, "source": record.source}
