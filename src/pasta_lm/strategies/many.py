"""Many documents through one engine: several at a time, rows in order, failures apart."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Generic, TypeVar

from pasta_lm.documents import Document, JobFile, read_documents
from pasta_lm.engines import Engine
from pasta_lm.engines.request import Answer, Failed, Finished, Request
from pasta_lm.errors import InputError, InvalidAnswerError, PastaError, RemoteError, UsageError
from pasta_lm.journal import Row
from pasta_lm.strategies.parts import PartsAnswer
from pasta_lm.strategies.requests import check_prompt
from pasta_lm.strategies.wanted import A, Wanted

T = TypeVar("T")
AT_ONCE = 16  # documents of ten fields: on a CPU 1.5 times as fast as one by one, 4 at once 1.3
NUM_AGAIN = 2  # times that a document of a lost server is decoded anew
AHEAD = 8  # windows of documents that wait for a slow one before them


@dataclass(slots=True, eq=False)
class Place(Generic[T]):
    """A document's place in the order, and what became of it."""

    document: T
    outcome: Answer | PastaError | None = None  # None: it is being decoded
    num_lost: int = 0
    num_before: int = 0  # documents that had been decoded when it was lost first


class Window(Generic[T]):
    """The documents that are decoded at once, and those that wait for others before them."""

    def __init__(self, engine: Engine, request_of: Callable[[T], Request], size: int) -> None:
        self._engine, self._request_of, self._size = engine, request_of, size
        self._places = deque[Place[T]]()
        self._decoding = dict[int, Place[T]]()  # by the numbers of their requests
        self._num_decoded = 0

    def outcomes(self, documents: Iterable[T]) -> Iterator[list[tuple[T, Answer | PastaError]]]:
        """Yield each document with its answer or error, in order, as many as there are.

        An ``InputError`` concerns a document alone, and so does a ``RemoteError`` that follows it
        from server to server while other documents are decoded; others are raised.
        """
        waiting = iter(documents)
        try:
            while True:
                self._fill_up(waiting)
                if not self._places:
                    return
                for number, event in self._engine.step() if self._decoding else ():
                    if isinstance(event, Finished | Failed):
                        self._ended(self._decoding.pop(number), event)
                if ready := [*self._ready()]:
                    yield ready
        finally:
            for number in self._decoding:
                self._engine.cancel(number)

    def _fill_up(self, waiting: Iterator[T]) -> None:
        while len(self._decoding) < self._size and len(self._places) < AHEAD * self._size:
            for document in waiting:
                place = Place(document)
                self._places.append(place)
                self._begin(place)
                break
            else:
                return

    def _begin(self, place: Place[T]) -> None:
        try:
            self._decoding[self._engine.submit(self._request_of(place.document))] = place
        except InputError as exc:
            place.outcome = exc

    def _ended(self, place: Place[T], event: Finished | Failed) -> None:
        if isinstance(event, Finished):
            place.outcome = event.answer
            self._num_decoded += 1
            return
        error = event.error
        is_lost = isinstance(error, RemoteError)
        place.num_before = place.num_before if place.num_lost else self._num_decoded
        place.num_lost += 1
        if is_lost and place.num_lost <= NUM_AGAIN:
            self._begin(place)
        elif isinstance(error, InputError):
            place.outcome = error
        elif isinstance(error, RemoteError) and self._num_decoded > place.num_before:
            place.outcome = error
        else:
            raise error

    def _ready(self) -> Iterator[tuple[T, Answer | PastaError]]:
        while self._places and (outcome := self._places[0].outcome) is not None:
            yield self._places.popleft().document, outcome


@dataclass(slots=True)
class Tally:
    """What the rows of a job say."""

    total: int  # documents
    num_rows: int = 0
    num_failed: int = 0
    num_cut: int = 0  # rows with a part that a limit cut
    first: str = ""  # failure

    def take(self, row: Row) -> None:
        self.num_rows += 1
        self.num_failed += "error" in row
        self.num_cut += bool(row.get("unfinished"))
        if "error" in row and not self.first:
            self.first = f"{row['id']}: {row['error']}"


@dataclass(frozen=True)
class Job:
    """What is wanted of many documents."""

    files: Sequence[Path]
    out: JobFile
    settings: Mapping[str, object]  # that the rows depend on
    instruction: str | None = None  # stands above each text
    limit: int | None = None
    check: Callable[[PartsAnswer], object] | None = None
    """Raises an ``InvalidAnswerError`` for data that a class refuses."""

    def run(self, begin: Callable[[], tuple[Engine, Wanted[A]]]) -> Generator[Tally, None, None]:
        """Append the rows that are missing; yield the tally first, and each time it has changed.

        The model is loaded, if there are any, before the first.
        """
        total, contents = 0, sha256()
        for document in read_documents(self.files):
            contents.update(json.dumps(document).encode())
            total += 1
        documents = {"sha256": contents.hexdigest()}
        settings = {**self.settings, "prompt": self.instruction, "documents": documents}
        tally = Tally(min(total, self.limit or total))
        with self.out.opened(settings):
            self._take_stored(tally)
            missing = islice(read_documents(self.files), tally.num_rows, self.limit)
            if not (first := [*islice(missing, 1)]):
                yield tally
                return
            engine, wanted = begin()
            yield tally
            size = max(AT_ONCE, engine.max_rows // len(self.out.columns))
            window = Window(engine, partial(self._request, wanted), size)
            for outcomes in window.outcomes(chain(first, missing)):
                rows = [self._row(wanted, *outcome) for outcome in outcomes]
                self.out.append(rows)
                for row in rows:
                    tally.take(row)
                yield tally

    def _take_stored(self, tally: Tally) -> None:
        documents = read_documents(self.files)
        for row, document in zip(self.out.rows(), documents, strict=False):
            if str(row["id"]) != str(document.id):
                reason = f"{self.out.path} has the row {row['id']!r} for {document.id!r}"
                raise UsageError(reason, hint="restore its rows, or name another file")
            tally.take(row)

    def _request(self, wanted: Wanted[A], document: Document) -> Request:
        prompt = document.prompt
        if document.error is not None:
            raise InputError(document.error)
        if self.instruction is not None:
            if not isinstance(prompt, str):
                raise InputError("it has messages, so no prompt can stand above its text")
            prompt = f"{self.instruction}\n\n{prompt}"
        try:
            check_prompt(prompt)
        except UsageError as exc:
            raise InputError(exc.message) from exc
        return wanted.request(prompt)

    def _row(self, wanted: Wanted[A], document: Document, outcome: Answer | PastaError) -> Row:
        if isinstance(outcome, PastaError):
            return {"id": document.id, "error": outcome.message}
        answer = wanted.read(outcome, document.prompt)  # spans are places in the document
        known = {name: value and round(value, 4) for name, value in answer.confidence.items()}
        row: Row = {"id": document.id, "data": answer.data, "confidence": known}
        row |= {"spans": answer.spans} if answer.spans else {}
        row |= {"unfinished": [*answer.unfinished]}
        try:
            if self.check and not answer.unfinished:
                self.check(answer)
        except InvalidAnswerError as exc:
            row["error"] = exc.message
        return row
