"""Many documents in, a row for each out: JSON lines, tables of CSV, texts; a job can go on.

Rows stand in the order of the documents, so those that are there are the first documents' rows. A
row is whole or not there: an incomplete last one is cut off. ``OUT.job.json`` has the settings of
the job; with others, or documents of other contents, its rows are not continued.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from pasta_lm.errors import InputError, MissingFileError, UsageError, cause
from pasta_lm.journal import Row, append_synced, held, line_of, parse_object, write_json, write_rows

JSON_LINES, TABLE = (".jsonl", ".jsonl.gz"), ".csv"
SETTINGS = ".job.json"
DELIMITERS = ",;\t"
RESERVED = ("id", "unfinished", "error")  # columns beside those of the data
MAX_SHOWN = 60  # characters of a setting in a message
Columns = Mapping[str, tuple[str | int, ...]]
"""The columns of a table with the keys of their values in the data of a row."""


class Document(NamedTuple):
    """A document, named as in its file or by its place there."""

    id: str | int
    prompt: str | list[Row]  # a text or messages
    error: str | None = None  # why it cannot be read


def has_documents(file: Path) -> bool:
    """Return whether the name of a file is one of many documents."""
    return file.name.endswith((*JSON_LINES, TABLE))


def read_documents(files: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents of a file of JSON lines or CSV, or of text files, named as those are.

    One that cannot be read, or whose id was met before, has an error.
    """
    first, is_named = files[0], len(files) == 1 and has_documents(files[0])
    if is_named and first.suffix == TABLE:
        documents = _table_documents(first)
    else:
        documents = _json_documents(first) if is_named else _text_documents(files)
    ids = set[str]()
    for document in documents:
        twice = f"the id {document.id!r} occurs twice" if str(document.id) in ids else None
        yield document._replace(error=twice) if twice else document
        ids.add(str(document.id))


def _text_documents(files: Sequence[Path]) -> Iterator[Document]:
    are_twins = len({file.name for file in files}) < len(files)
    for file in files:
        name = str(file) if are_twins else file.name
        try:
            yield _checked(name, file.read_bytes().decode("utf-8-sig"))
        except UnicodeDecodeError as exc:
            yield Document(name, "", f"it is not UTF-8: byte {exc.start + 1} cannot be read")
        except OSError as exc:
            yield Document(name, "", f"it cannot be read: {cause(exc)}")


def _json_documents(file: Path) -> Iterator[Document]:
    for number, line in enumerate(_lines(file), start=1):
        if line.strip():
            try:
                row = parse_object(line.decode("utf-8-sig"))
            except InputError as exc:
                yield Document(f"line {number}", "", f"line {number}: {exc.message}")
            except UnicodeDecodeError:
                yield Document(f"line {number}", "", f"line {number}: it is not UTF-8")
            else:
                yield _of_row(row, f"line {number}")


def _table_documents(file: Path) -> Iterator[Document]:
    csv.field_size_limit(sys.maxsize)  # a cell is a document
    try:
        lines = (
            line.decode("utf-8-sig" if n == 0 else "utf-8") for n, line in enumerate(_lines(file))
        )
        head = next(lines, "").rstrip("\r\n")
        readers = (csv.reader([head], delimiter=mark) for mark in DELIMITERS)
        headers = {mark: next(reader, []) for mark, reader in zip(DELIMITERS, readers, strict=True)}
        mark = next((mark for mark in DELIMITERS if "text" in headers[mark]), "")
        if not mark:
            reason = f"{file} has no column 'text'; its first line is {head[:MAX_SHOWN]!r}"
            raise InputError(reason, hint="the first line names the columns: id,text")
        for number, cells in enumerate(csv.reader(lines, delimiter=mark, strict=True), start=2):
            row = dict(zip(headers[mark], cells, strict=False))
            if len(cells) > len(headers[mark]):
                reason = f"row {number} has {len(cells)} cells, the header {len(headers[mark])}"
                yield Document(row.get("id") or f"row {number}", "", reason)
            elif cells:
                yield _of_row(row, f"row {number}")
    except (csv.Error, UnicodeDecodeError) as exc:
        reason = "it is not UTF-8" if isinstance(exc, UnicodeDecodeError) else str(exc)
        raise InputError(f"{file} cannot be read as CSV: {reason}") from exc


def _lines(file: Path) -> Iterator[bytes]:
    opening = gzip.open if file.name.endswith(".gz") else open
    try:
        with opening(file, "rb") as lines:
            yield from lines
    except FileNotFoundError as exc:
        raise MissingFileError(file) from exc
    except (OSError, EOFError) as exc:
        raise InputError(f"{file} cannot be read: {cause(exc)}") from exc


def _of_row(row: Row, place: str) -> Document:
    name, messages = row.get("id"), row.get("messages")
    if name in (None, ""):
        name = place
    elif not isinstance(name, str | int) or isinstance(name, bool):
        return Document(place, "", f"its id is {name!r}, neither a text nor a whole number")
    if messages is None:
        return _checked(name, row.get("text"))
    if "text" in row or not (isinstance(messages, list) and messages):
        return Document(name, "", "give it a text, or a list of messages")
    return Document(name, messages)


def _checked(name: str | int, text: object) -> Document:
    if not isinstance(text, str):
        return Document(name, "", "it has no text" if text is None else f"its text is {text!r}")
    return Document(name, text, None if text.strip() else "its text is empty")


@dataclass(frozen=True)
class JobFile:
    """The file of a job's rows: JSON lines, or a table if its name ends in ``.csv``."""

    path: Path
    columns: Columns
    has_confidence: bool = False  # whether a table has columns for it

    @property
    def is_table(self) -> bool:
        return self.path.suffix == TABLE

    @property
    def _header(self) -> list[str]:
        data = (f"data.{name}" if name in RESERVED else name for name in self.columns)
        return ["id", *data, *self._confidences, "unfinished", "error"]

    @property
    def _confidences(self) -> list[str]:
        return [f"confidence.{name}" for name in self.columns if self.has_confidence]

    @contextmanager
    def opened(self, settings: Mapping[str, object]) -> Iterator[None]:
        """Hold the file while rows are appended; a ``UsageError`` if it is of another job."""
        if not self.path.absolute().parent.is_dir():
            raise UsageError(f"no folder {self.path.parent} for the rows", hint="make it first")
        beside, now = Path(f"{self.path}{SETTINGS}"), json.loads(json.dumps(settings))
        if self.is_table:
            now["confidence"] = self.has_confidence
        with held(self.path, self.path):
            if beside.exists():
                self._check(json.loads(beside.read_text("utf-8")), now)
            elif self.path.stat().st_size:
                reason = f"{self.path} is there and was not begun by such a job"
                raise UsageError(reason, hint="name another file with --out")
            else:
                write_json(beside, now)
            os.truncate(self.path, sum(map(len, self._records())))
            if self.is_table and not self.path.stat().st_size:
                append_synced(self.path, _line_of_cells(self._header))
            yield

    def _check(self, begun: Row, now: Row) -> None:
        other = [key for key in now | begun if begun.get(key) != now.get(key)]
        if other:
            texts = {
                key: f" ({begun[key]})" for key in begun if isinstance(begun[key], str | float)
            }
            names = ", ".join(f"{key}{texts.get(key, '')[:MAX_SHOWN]}" for key in other)
            hint = "go on with the same, or name another file with --out"
            raise UsageError(f"{self.path} was begun with other settings: {names}", hint=hint)

    def _records(self) -> Iterator[bytes]:
        """Yield the lines that are whole; a line of a table may go on inside quotation marks."""
        with self.path.open("rb") as file:
            record = b""
            for line in file:
                record += line
                if line.endswith(b"\n") and not (self.is_table and record.count(b'"') % 2):
                    yield record
                    record = b""

    def rows(self) -> Iterator[Row]:
        """Yield the rows that are whole; those of a table have cells, and confidences."""
        for number, record in enumerate(self._records()):
            try:
                if not self.is_table:
                    yield parse_object(record.decode())
                elif number:
                    yield self._of_cells(next(csv.reader(StringIO(record.decode(), newline=""))))
            except (ValueError, InputError) as exc:
                raise InputError(f"{self.path}:{number + 1}: no row of a job: {exc}") from exc

    def _of_cells(self, cells: list[str]) -> Row:
        name, *cells, unfinished, error = cells
        data = dict(zip(self.columns, cells, strict=False))
        beside = zip(self.columns, cells[len(data) :], strict=False)
        confidence = {field: float(cell) for field, cell in beside if cell}
        row: Row = {"id": name, "data": data, "confidence": confidence, "unfinished": unfinished}
        return row | ({"error": error} if error else {})

    def write_review(self, below: float, file: Path) -> int:
        """Write the rows with a field below a confidence, or cut; return their number."""
        review = list[Row]()
        for row in self.rows():
            confidence = row.get("confidence") or {}
            known = {name: value for name, value in confidence.items() if value is not None}
            low = {name: value for name, value in known.items() if value < below}
            if low or row.get("unfinished"):
                kept = {key: row[key] for key in ("unfinished", "data") if row.get(key)}
                review.append({"id": row["id"], "below": low, **kept})
        write_rows(file, review)
        return len(review)

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows; on return they are on disk, and after an error those before are whole."""
        as_line = self._line_of if self.is_table else line_of
        append_synced(self.path, b"".join(map(as_line, rows)))

    def _line_of(self, row: Row) -> bytes:
        data, confidence = row.get("data"), row.get("confidence") or {}
        values = [_value(data, keys) for keys in self.columns.values()]
        values += [confidence.get(name) for name in self.columns if self.has_confidence]
        unfinished = ", ".join(row.get("unfinished", ()))
        return _line_of_cells([row["id"], *values, unfinished, row.get("error")])


def _value(data: object, keys: Sequence[str | int]) -> object:
    try:
        return reduce(lambda value, key: value[key], keys, data)  # type: ignore[index]
    except (KeyError, IndexError, TypeError):  # it is unfinished
        return None


def _line_of_cells(cells: Iterable[object]) -> bytes:
    text = StringIO(newline="")
    spelled = (
        cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
        for cell in ("" if cell is None else cell for cell in cells)
    )  # fmt: skip
    csv.writer(text).writerow(spelled)
    return text.getvalue().encode(errors="backslashreplace")
