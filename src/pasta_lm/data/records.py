"""Annotated data on disk: a prompt and its answer in PASTA-LANG, a line each.

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
    """Read annotated data, as ``read_annotated`` does; every row must have a prompt.

    Raises:
        InputError: the file cannot be read, or a row is no record: the first is named by its line.
    """
    answers, problems = read_annotated(path, needs_prompt=True)
    if problems:
        first = problems[0]
        raise InputError(f"{path}:{first.line}: {first.reason}", hint=first.hint)
    return [Record(one.id, one.prompt, one.document, one.source) for one in answers]


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write annotated data, and return how many records it was.

    Raises:
        InputError: a record could not be read again, and nothing is written; or the file cannot be.
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
