"""Read what a verb was given and write what it was told to: files, standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from pasta_lm.errors import InputError, PastaError

STDIN = "-"


def read_text(file: str) -> str:
    """Return the text of a file, ``-`` for standard input, every line end as it is.

    Raises:
        InputError: there is no such file, or it is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
        return data.decode("utf-8")
    except FileNotFoundError as exc:
        raise InputError(f"no such file: {file}") from exc
    except OSError as exc:
        raise InputError(f"{file} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InputError(f"{file} is not UTF-8: byte {exc.start + 1} cannot be read") from exc


def write_text(file: Path, text: str) -> None:
    """Write a text to a file.

    Raises:
        PastaError: it cannot be written there.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise PastaError(f"{file} cannot be written: {exc.strerror}") from exc
