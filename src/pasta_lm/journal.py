"""Files of JSON lines: a journal that survives a kill, and readers for the files of users.

In a journal every row is complete, or was never written. An incomplete last line was being written
when the process ended; it is cut off when the journal is opened again.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pasta_lm.errors import InputError, MissingFileError, PastaError, UsageError, cause

Row = dict[str, Any]


class Journal:
    """A file to which rows are appended; each has a unique ``id``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.read_again()

    def read_again(self) -> None:
        """Cut an incomplete last line off, and read the rows, also those of other processes."""
        self.rows = dict[str, Row]()  # those on disk by id, in the order of their writing
        self._is_torn = False
        if self.path.exists():
            cut_torn_line(self.path)
            self.rows |= {row["id"]: row for row in read_rows(self.path)}

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows; on return they are on disk, not in a buffer."""
        for row in rows:
            if row["id"] in self.rows:
                raise ValueError(f"{self.path} has a row {row['id']} already")
        if self._is_torn:
            raise PastaError("the journal ends in a torn line: run the same command again")
        self._is_torn = True  # nothing may follow it; opening the file again cuts it off
        append_synced(self.path, b"".join(map(line_of, rows)))
        self._is_torn = False
        self.rows |= {row["id"]: row for row in rows}


def append_synced(path: Path, data: bytes) -> None:
    """Append to a file; on return it is on disk. After a ``PastaError`` its end may be torn."""
    is_new = not path.exists()
    try:
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync_folder(path.parent)
    except OSError as exc:
        hint = "what was counted is safe; make room and run the same command again"
        raise PastaError(f"{path} cannot be written: {exc.strerror}", hint=hint) from exc


def cut_torn_line(path: Path) -> None:
    with path.open("rb+") as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)
            os.fsync(file.fileno())


@contextmanager
def held(path: Path, written: Path | None = None) -> Iterator[None]:
    """Lock a file, which is made if it does not exist; a ``UsageError`` if another process did.

    It names what is ``written``, by default the folder. However the process ends, it lets go.
    """
    import fcntl  # not on Windows, where the rest of this module works

    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            problem = f"another process is writing {written or path.parent}"
            raise UsageError(problem, hint="wait for it, or end it") from exc
        yield
    finally:
        os.close(handle)


def read_lines(
    path: Path, *, errors: str | None = None, newline: str | None = None
) -> Iterator[str]:
    """Yield the lines of a text file, gzipped if named ``.gz``, without a byte-order mark."""
    opening = gzip.open if path.name.endswith(".gz") else open
    try:
        with opening(path, "rt", encoding="utf-8-sig", errors=errors, newline=newline) as file:
            yield from file
    except FileNotFoundError as exc:
        raise MissingFileError(path) from exc
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as exc:
        raise InputError(f"{path} cannot be read: {cause(exc)}") from exc


def unique_object(pairs: list[tuple[str, object]]) -> Row:
    if len(row := dict(pairs)) < len(pairs):
        ((doubled, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {doubled!r} stands twice in an object")
    return row


parse_unique = partial(json.loads, object_pairs_hook=unique_object)
"""Parse JSON that a user wrote; a ``ValueError`` names a key that stands twice in an object."""


def parse_object(line: str) -> Row:
    try:
        row = parse_unique(line)
    except json.JSONDecodeError as exc:
        raise InputError(f"not JSON: {exc.msg} at column {exc.colno}") from exc
    except (ValueError, RecursionError) as exc:
        raise InputError(f"it cannot be read: {exc}") from exc
    if not isinstance(row, dict):
        raise InputError("not a JSON object")
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        raise InputError("a text holds half a surrogate pair: it is no Unicode") from exc
    return row


def read_objects(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the objects of a file of JSON lines, gzipped if named ``.gz``, with line numbers."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                row = parse_object(line)
            except InputError as exc:
                raise InputError(f"{path}:{number}: {exc.message}") from exc
            yield number, row


def read_rows(path: Path) -> list[Row]:
    rows: dict[str, Row] = {}
    for number, line in filter(lambda pair: pair[1].strip(), enumerate(read_lines(path), start=1)):
        row = None
        with suppress(ValueError):
            row = parse_unique(line)
        if not isinstance(row, dict) or not isinstance(row.get("id"), str):
            raise InputError(f"{path}:{number}: no JSON object with an id, or a key stands twice")
        if row["id"] in rows:
            raise InputError(f"{path}:{number}: {row['id']} occurs twice")
        rows[row["id"]] = row
    return list(rows.values())


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    write_whole(path, b"".join(map(line_of, rows)))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: a reader finds all of it, what was there before, or no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync_folder(path.parent)


def write_json(path: Path, data: object) -> None:
    write_whole(path, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())


def line_of(row: Row) -> bytes:
    """Return a row as a line of a file; half a surrogate pair, which is no UTF-8, is escaped."""
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row).encode() + b"\n"


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
