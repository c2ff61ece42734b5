"""The output folder of a run that can be stopped and continued.

::

    settings.json     the settings that the results depend on
    inputs.json       hashes of the files that they depend on
    NAME.jsonl        rows: a journal each
    lock              held by the process that writes

The same command continues a run. With other settings, or files of other contents, it is refused:
rows of two kinds would stand in one file. Files may be moved and renamed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from pasta_lm.errors import InputError, PastaError, UsageError, cause
from pasta_lm.journal import Journal, Row, held, read_rows, write_json
from pasta_lm.recipe import validated, without_passwords

T = TypeVar("T")
SETTINGS, INPUTS, LOCK = "settings.json", "inputs.json", "lock"
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)))


def say(line: str) -> None:
    print(f"pasta: {line}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """Give a path for a file or folder that replaces ``out`` at the end; none is left by an error.

    safetensors makes its files private; in a folder they get the folder's rights.
    """
    part = out.with_name(f"{out.name}.part")
    _remove(part)  # a process that was killed left it
    try:
        yield part
        for file in part.iterdir() if part.is_dir() else ():
            file.chmod(part.stat().st_mode & 0o666)
        _remove(out)
        part.replace(out)
    finally:
        _remove(part)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def hash_files(*files: str | Path) -> str:
    """Return a hash of the contents of some files in this order, whatever their names."""
    states = ((Path(file), Path(file).stat()) for file in files)
    hashes = (_hash_once(f, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for f, s in states)
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


@cache  # a process reads weights once; no stamp decides between two processes
def _hash_once(file: Path, *_: int) -> str:
    return hash_file(file)


def hash_file(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


@contextmanager
def full_disk_named(out: Path) -> Iterator[None]:
    """Raise a PastaError if the disk is full, whichever library writes to it."""
    try:
        yield
    except Exception as exc:
        # Each library has an error class of its own; all of them quote the system.
        reason = next((text for text in _FULL if text in str(exc)), None)
        if reason is None or isinstance(exc, PastaError):
            raise
        hint = "make room and run the same command again, a training with --resume"
        raise PastaError(f"{out} cannot be written: {reason}", hint=hint) from exc


def _flat(settings: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", str(value) if isinstance(value, float) else value


class RunFolder:
    """The settings and the rows of a run."""

    def __init__(self, path: Path, settings_file: str = SETTINGS) -> None:
        self.path, self._settings_file = path, path / settings_file

    @property
    def has_begun(self) -> bool:
        return self._settings_file.exists()

    def settings(self) -> Row:
        file = self._settings_file
        try:
            data = json.loads(file.read_text("utf-8-sig"))
        except (OSError, ValueError) as exc:
            problem = f"{self.path} is not the folder of a run"
            raise InputError(f"{problem}: {file.name}: {cause(exc)}") from exc
        if not isinstance(data, dict):
            raise InputError(f"{file} is no JSON object")
        return data

    def settings_of(self, kind: type[T]) -> T:
        try:
            return validated(kind, self.settings())
        except UsageError as exc:
            raise InputError(f"{self.path} is not the folder of such a run: {exc.message}") from exc

    def begin(
        self, settings: Mapping[str, object], *, may_change: Collection[str] = (),
        inputs: Mapping[str, str] = {}, prepare: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Begin a run, or continue the one that the folder holds.

        ``settings`` are nested tables, of which ``may_change`` has the dotted keys that no result
        depends on; passwords are not stored. ``inputs`` are hashes by what was hashed. Keys that
        are gone are not compared, nor new hashes, but those of a model. ``prepare`` writes the
        inputs of a new run before.
        """
        settings = json.loads(without_passwords(json.dumps(settings)))
        is_new, file = not self.has_begun, self.path / INPUTS
        before = dict(_flat(settings if is_new else self.settings()))
        changed = [
            f"{key} = {before.get(key)!r}, not {value!r}"
            for key, value in _flat(settings)
            if key not in may_change and (key not in before or before[key] != value)
        ]
        if changed:
            hint = "restore the settings, or choose another output folder"
            raise UsageError(f"{self.path} was begun with {'; '.join(changed[:3])}", hint=hint)
        stored = {} if is_new or not file.exists() else json.loads(file.read_text("utf-8"))
        kinds = {key.partition(" (")[0] for key in stored if " (" in key}  # parts of a model
        new = [key for key in inputs if key not in stored and key.partition(" (")[0] in kinds]
        if changed := [k for k, v in inputs.items() if stored.get(k, v) != v or k in new]:
            hint = "restore them, or choose another output folder"
            raise UsageError(f"{self.path} was begun with other {', '.join(changed)}", hint=hint)
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)
            if is_new:
                prepare()
            if inputs:
                write_json(file, {**stored, **inputs})
            write_json(self._settings_file, settings)

    def require_own(self, *patterns: str) -> None:
        """Refuse (``UsageError``) a folder where files of these names are of no such run."""
        files = [file for pattern in patterns for file in self.path.glob(pattern)]
        if files and not self.has_begun:
            reason = f"{self.path} holds files, but no run: it is not overwritten"
            raise UsageError(reason, hint="name another folder")

    def require_new(self, *, resume: bool = False, overwrite: bool = False) -> None:
        if resume and overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
        if self.has_begun and not resume and not overwrite:
            hint = "--resume continues it, --overwrite replaces it; or name another folder"
            raise UsageError(f"{self.path} has a run already", hint=hint)
        if overwrite:
            self.require_own("*")
        files = [*self.path.iterdir()] if overwrite and self.path.exists() else []
        with self.writing():
            for file in sorted(files, key=lambda file: file == self._settings_file):
                shutil.rmtree(file) if file.is_dir() else file.unlink()

    def journal(self, name: str) -> Journal:
        return Journal(self.path / f"{name}.jsonl")

    def rows(self, name: str) -> list[Row]:
        file = self.path / f"{name}.jsonl"
        return read_rows(file) if file.exists() else []

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / LOCK).touch()
        with held(self.path / LOCK):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            hint = "make room, or name another folder; what is stored is safe"
            raise PastaError(f"{self.path} cannot be written: {cause(exc)}", hint=hint) from exc
