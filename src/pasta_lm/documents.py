"""A job over many documents: read from a file, decoded several at a time, a row for each.

The rows stand in the order of the documents, so those that are there are the first documents' rows.
``OUT.job.json`` has what they depend on; with other settings or documents they are not continued.
A table (``OUT.csv``) is made of the rows in ``OUT.csv.jsonl`` whenever the job stops.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice, takewhile
from pathlib import Path
from threading import Event
from typing import NamedTuple

from pasta_lm.engines import Engine
from pasta_lm.engines.request import Answer, Failed, Finished
from pasta_lm.errors import (
    InputError,
    InvalidAnswerError,
    PastaError,
    RemoteError,
    UsageError,
    cause,
)
from pasta_lm.journal import (
    Row,
    append_synced,
    cut_torn_line,
    held,
    line_of,
    parse_object,
    read_lines,
    write_json,
    write_rows,
    write_whole,
)
from pasta_lm.parts.values import value_at
from pasta_lm.parts.wanted import Wanted
from pasta_lm.strategies import Prompt
from pasta_lm.strategies.requests import check_prompt

LINES, TABLE = ".jsonl", ".csv"
NUMBER, CONTENTS = "number of documents", "contents of documents"
RESERVED = ("id", "unfinished", "error")  # columns beside those of the data
DELIMITERS = ",;\t"
AT_ONCE = 16  # on a CPU, ten fields: 1.1 times as fast as one by one at 1.5B, 1.5 at 0.5B
NUM_AGAIN = 2  # times that a document of a lost server is decoded anew
AHEAD = 8  # windows of documents that wait for a slow one before them
Columns = Mapping[str, tuple[str | int, ...]]
"""The columns of a table, with the keys of their values in the data of a row."""


class JobDocument(NamedTuple):
    """A document, named by its id, or else by its file or its line."""

    id: str | int
    prompt: Prompt = ""  # a text or messages
    error: str | None = None  # why it cannot be read
    data: object = None  # the values of its fields, if a person has labelled it


def reader_of(file: Path) -> Callable[[Path], Iterator[tuple[str, Row | str]]] | None:
    """Return the reader of a file of rows, by its suffix; None: the file is one document."""
    readers = {LINES: _json_rows, ".ndjson": _json_rows, TABLE: _table_rows, ".tsv": _table_rows}
    return readers.get(file.suffix.lower())


def read_documents(files: Sequence[Path]) -> Iterator[JobDocument]:
    """Yield the documents of a file of JSON lines or CSV, or of text files; some have an error."""
    read = reader_of(files[0])
    if len(files) > 1 and (many := [file for file in files if reader_of(file)]):
        reason = f"{many[0]} has many documents and stands beside other files"
        raise UsageError(reason, hint="name it alone, or only text files")
    ids = set[str]()
    for place, row in read(files[0]) if read else _text_rows(files):
        document = _document(place, row)
        if isinstance(document.id, str):
            document = document._replace(id=document.id.encode(errors="backslashreplace").decode())
        twice = f"the id {document.id!r} occurs twice" if str(document.id) in ids else None
        yield document._replace(error=twice) if twice else document
        ids.add(str(document.id))


def _json_rows(file: Path) -> Iterator[tuple[str, Row | str]]:
    for number, line in enumerate(read_lines(file, errors="surrogateescape"), start=1):
        try:
            if line.strip():
                yield f"line {number}", parse_object(line)
        except InputError as exc:
            yield f"line {number}", exc.message


def _table_rows(file: Path) -> Iterator[tuple[str, Row | str]]:
    csv.field_size_limit(sys.maxsize)  # a cell is a document
    lines = read_lines(file, errors="surrogateescape", newline="")
    head = next(lines, "")
    mark = max(DELIMITERS, key=head.count)
    names = next(csv.reader([head], delimiter=mark), [])
    if names.count("text") != 1 or names.count("id") > 1:
        reason = f"{file} needs one column 'text', and no two 'id': it has {head.strip()[:60]!r}"
        raise InputError(reason, hint="the first line names the columns: id,text")
    rows = csv.DictReader(lines, names, delimiter=mark, strict=True)
    try:
        for number, row in enumerate(rows, start=2):
            place = row.get("id") or f"row {number}"
            is_long = row.pop(None, None) is not None
            yield place, "it has more cells than the first line" if is_long else row
    except csv.Error as exc:
        raise InputError(f"{file} cannot be read as CSV: {exc}") from exc


def _text_rows(files: Sequence[Path]) -> Iterator[tuple[str, Row | str]]:
    are_twins = len({file.name for file in files}) < len(files)
    for file in files:
        try:
            row: Row | str = {"text": file.read_bytes().decode("utf-8-sig")}
        except (OSError, UnicodeDecodeError) as exc:
            reason = cause(exc) if isinstance(exc, OSError) else "it is not UTF-8"
            row = f"it cannot be read: {reason}"
        yield str(file) if are_twins else file.name, row


def _document(place: str, row: Row | str) -> JobDocument:
    if isinstance(row, str):
        return JobDocument(place, error=row)
    name, text, messages = row.get("id"), row.get("text"), row.get("messages")
    if name in (None, ""):
        name = place
    elif not isinstance(name, str | int) or isinstance(name, bool):
        return JobDocument(place, error=f"its id is {name!r}, neither a text nor a whole number")
    if (messages is None) is (text is None):
        return JobDocument(name, error="it needs a text, or a list of messages")
    prompt: Prompt = text or messages or ""
    try:
        json.dumps(prompt, ensure_ascii=False).encode()
        check_prompt(prompt)
    except (UnicodeEncodeError, InputError, UsageError) as exc:
        reason = exc.message if isinstance(exc, PastaError) else "its text is not UTF-8"
        return JobDocument(name, error=reason)
    return JobDocument(name, prompt, data=row.get("data"))


Outcome = tuple[JobDocument, Answer | PastaError]


@dataclass(slots=True, eq=False)
class Place:
    """A document's place in the order, and what became of it."""

    document: JobDocument
    outcome: Answer | PastaError | None = None  # None: it is being decoded
    num_lost: int = 0
    num_before: int = 0  # documents that had been decoded when it was lost first


class Window:
    """The documents that are decoded at once, and those that wait for others before them."""

    def __init__(self, engine: Engine, wanted: Wanted, size: int) -> None:
        self._engine, self._wanted, self._size = engine, wanted, size
        self._places = deque[Place]()
        self._decoding = dict[int, Place]()  # by the numbers of their requests
        self._lost = list[tuple[Place, RemoteError]]()  # too often, and no other was decoded since
        self._num_decoded = 0

    def outcomes(self, documents: Iterator[JobDocument]) -> Iterator[list[Outcome]]:
        """Yield each document with its answer or error, in order, as many as there are.

        An ``InputError`` concerns a document alone, and so does a ``RemoteError`` that it has again
        and again while others are decoded; other errors are raised.
        """
        try:
            while self._fill_up(documents):
                self._step()
                if ready := [*self._ready()]:
                    yield ready
        finally:
            for number in self._decoding:
                self._engine.cancel(number)

    def _step(self) -> None:
        for number, event in self._engine.step() if self._decoding else ():
            if isinstance(event, Finished | Failed):
                self._end(self._decoding.pop(number), event)
        for place, error in self._lost:
            if self._num_decoded > place.num_before:
                place.outcome = error
            elif not self._decoding:
                raise error
        self._lost = [pair for pair in self._lost if pair[0].outcome is None]

    def _ready(self) -> Iterator[Outcome]:
        while self._places and (outcome := self._places[0].outcome) is not None:
            yield self._places.popleft().document, outcome

    def _fill_up(self, documents: Iterator[JobDocument]) -> bool:
        """Begin documents as far as there is room; return whether any are left."""
        room = min(self._size - len(self._decoding), AHEAD * self._size - len(self._places))
        for document in islice(documents, max(0, room)):
            self._places.append(place := Place(document))
            self._begin(place)
        return bool(self._places)

    def _begin(self, place: Place) -> None:
        try:
            if place.document.error is not None:
                raise InputError(place.document.error)
            self._decoding[self._engine.submit(self._wanted.request(place.document.prompt))] = place
        except InputError as exc:
            place.outcome = exc

    def _end(self, place: Place, event: Finished | Failed) -> None:
        if isinstance(event, Finished):
            place.outcome, self._num_decoded = event.answer, self._num_decoded + 1
        elif isinstance(event.error, RemoteError):
            place.num_before = place.num_before if place.num_lost else self._num_decoded
            place.num_lost += 1
            if place.num_lost <= NUM_AGAIN:
                self._begin(place)
            else:
                self._lost.append((place, event.error))
        elif isinstance(event.error, InputError):
            place.outcome = event.error
        else:
            raise event.error


@dataclass(slots=True)
class RowCounts:
    """What the rows of a job say."""

    total: int  # documents
    num_rows: int = 0
    num_failed: int = 0
    num_cut: int = 0  # rows with an unfinished part
    first: str = ""  # failure

    def take(self, row: Row) -> None:
        self.num_rows += 1
        self.num_failed += "error" in row
        self.num_cut += bool(row.get("unfinished"))
        if "error" in row and not self.first:
            self.first = f"{row['id']}: {row['error']}"


@dataclass(frozen=True, slots=True)
class DocumentJob:
    """Many documents and the file of their rows: JSON lines, or a table with these columns."""

    files: Sequence[Path]
    out: Path
    columns: Columns
    settings: Mapping[str, object]  # that the rows depend on
    model: Callable[[], Mapping[str, str]] = dict  # what tells it from others, which takes long
    limit: int | None = None

    def run(
        self, begin: Callable[[], tuple[Engine, Wanted]], stop: Event
    ) -> Generator[RowCounts]:  # fmt: skip
        """Append missing rows; yield the counts when the model is loaded, and at each change.

        Once ``stop`` is set, no further document begins.
        """
        with self._opened() as total:
            counts = RowCounts(min(total, self.limit or total))
            for row in self.rows():
                counts.take(row)
            counts.total = max(counts.total, counts.num_rows)  # an earlier limit was larger
            missing = takewhile(
                lambda _: not stop.is_set(),
                islice(read_documents(self.files), counts.num_rows, self.limit),
            )
            engine, wanted = begin() if counts.num_rows < counts.total else (None, None)
            yield counts
            if engine is None or wanted is None:
                return
            size = AT_ONCE * max(1, len(engine.served_names))
            for outcomes in Window(engine, wanted, size).outcomes(missing):
                rows = [_row(wanted, *outcome) for outcome in outcomes]
                append_synced(self.rows_file, b"".join(map(line_of, rows)))
                for row in rows:
                    counts.take(row)
                yield counts

    @property
    def rows_file(self) -> Path:
        return Path(f"{self.out}{LINES}") if self.out.suffix == TABLE else self.out

    def rows(self) -> Iterator[Row]:
        return map(json.loads, read_lines(self.rows_file))  # data may hold half a surrogate pair

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Hold the rows, which must be of this job (``UsageError``); give the documents' number."""
        if not self.out.absolute().parent.is_dir():
            raise UsageError(f"no folder {self.out.parent} for the rows", hint="make it first")
        head = self._head()
        if self.out.suffix == TABLE and (twice := [name for name in head if head.count(name) > 1]):
            reason = f"two columns of {self.out} would have the name {twice[0]}"
            raise UsageError(reason, hint="name a file of JSON lines: --out rows.jsonl")
        beside = Path(f"{self.out}.job.json")
        foreign = [] if beside.exists() else [self.out, self.rows_file]
        if any(file.exists() and file.stat().st_size for file in foreign):
            reason = f"{self.out} is there and was not begun by such a job"
            raise UsageError(reason, hint="name another file with --out")
        with held(self.rows_file, self.out):
            begun = parse_object(beside.read_text("utf-8")) if beside.exists() else {}
            same, total, contents = self._contents(begun.get(NUMBER, 0))
            if not total:
                raise InputError("there are no documents", hint='a line is {"text": "..."}')
            known: Row = {NUMBER: begun.get(NUMBER), CONTENTS: same}
            reads: list[Callable[[], Mapping[str, object]]] = [lambda: self.settings, self.model]
            for read in reads:  # one by one: the hashes of a model take long
                known |= json.loads(json.dumps({**read()}))
                other = [k for k, v in known.items() if json.dumps(begun.get(k)) != json.dumps(v)]
                if begun and other:  # a schema in another order, too
                    reason = f"{self.out} was begun with other settings: {', '.join(other)}"
                    raise UsageError(reason, hint="go on with the same, or name another --out")
            write_json(beside, {**known, NUMBER: total, CONTENTS: contents})
            cut_torn_line(self.rows_file)
            try:
                yield total
            finally:
                if self.out.suffix == TABLE:
                    self._write_table()

    def _contents(self, number: int) -> tuple[str, int, str]:
        """Return the hash of so many documents, the number of all, and their hash."""
        contents, total, same = sha256(), 0, ""
        for total, document in enumerate(read_documents(self.files), start=1):
            contents.update(json.dumps(document[:3]).encode())
            same = contents.hexdigest() if total == number else same
        return same, total, contents.hexdigest()

    def _head(self) -> list[str]:
        names = [f"data.{name}" if name in RESERVED else name for name in self.columns]
        return ["id", *names, *(f"confidence.{name}" for name in self.columns), *RESERVED[1:]]

    def _write_table(self) -> None:
        text = io.StringIO(newline="")
        table = csv.writer(text)
        table.writerow(self._head())
        for row in self.rows():
            data, known = row.get("data"), row.get("confidence") or {}
            cells = [value_at(keys, data) for keys in self.columns.values()]
            cells += [known.get(name) for name in self.columns]
            ends = ", ".join(row.get("unfinished", ())), row.get("error")
            table.writerow(map(_cell, (row["id"], *cells, *ends)))
        write_whole(self.out, text.getvalue().encode(errors="backslashreplace"))

    def write_review(self, below: float, file: Path) -> int:
        """Write the rows with a field below a confidence, or cut; return their number."""
        review = list[Row]()
        for row in self.rows():
            known = (row.get("confidence") or {}).items()
            low = {name: value for name, value in known if value is not None and value < below}
            if low or row.get("unfinished"):
                review.append({"id": row["id"], "below": low, **row})
        write_rows(file, review)
        return len(review)


def _row(wanted: Wanted, document: JobDocument, outcome: Answer | PastaError) -> Row:
    if isinstance(outcome, PastaError):
        return {"id": document.id, "error": outcome.message}
    try:
        answer = wanted.read(outcome, document.prompt)
    except InvalidAnswerError as exc:
        return {"id": document.id, "data": exc.data, "error": exc.message}
    known = {name: value and round(value, 4) for name, value in answer.confidence.items()}
    spans = {"spans": answer.spans} if answer.spans else {}
    likely = {"confidence": known} if any(value is not None for value in known.values()) else {}
    ends = {"unfinished": [*answer.unfinished]}
    return {"id": document.id, "data": answer.data, **likely, **spans, **ends}


def _cell(value: object) -> str:
    text = "" if value is None else value
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
