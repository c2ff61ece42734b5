"""Standard streams, files and the terminal: what verbs read, write and show.

Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Timer, current_thread, main_thread
from typing import TYPE_CHECKING, Protocol, TextIO

import typer

from pasta_lm.errors import InputError, MissingFileError, PastaError

if TYPE_CHECKING:
    from rich.console import Console

FAILED, INVALID = PastaError.exit_code, InputError.exit_code
INTERRUPTED = 130  # Ctrl-C, as shells report it: 128 + SIGINT
STDIN = "-"
GAP = "  "  # between columns
MIN_WIDTH = 20  # columns; COLUMNS=0 and other fancies are no terminal's
SECONDS_OF_SILENCE, SECONDS_BETWEEN_LINES = 1.0, 60.0
QUIET_SETTINGS = {
    "GOMP_SPINCOUNT": "10000",  # threads that wait sleep soon: another process needs their core
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",  # bars of the conversion of GGUF files
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def silence_libraries() -> None:
    for name, value in QUIET_SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in ("torch", "transformers", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")


def read_text(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except FileNotFoundError as exc:
        raise MissingFileError(file) from exc
    except OSError as exc:
        raise InputError(f"{file} cannot be read: {exc.strerror}") from exc
    return decoded(data, file)


def decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InputError(f"{name} is not UTF-8: byte {exc.start + 1} cannot be read") from exc


def write_text(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as exc:
        hint = "name a file in a folder that exists and that you may write to"
        raise PastaError(f"{file} cannot be written: {exc.strerror}", hint=hint) from exc


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: Collection[int] = (0,)
) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if column in text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        typer.echo(GAP.join(cells).rstrip())


def print_facts(*sections: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for section in sections for name, _ in section)
    lines = ([f"{name:<{width}}{GAP}{value}" for name, value in rows] for rows in sections)
    typer.echo("\n\n".join(map("\n".join, lines)))


def print_json(values: Mapping[str, object]) -> None:
    typer.echo(json.dumps(values, ensure_ascii=False))


def console(stream: TextIO) -> Console:
    from rich.console import Console

    is_terminal = stream.isatty()
    drawn = Console(
        file=stream, force_terminal=is_terminal,
        no_color=not is_terminal or "NO_COLOR" in os.environ, highlight=False, markup=False,
        emoji=False,
    )  # fmt: skip
    drawn.width = max(drawn.width, MIN_WIDTH)
    return drawn


def can_animate() -> bool:
    is_dumb = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    return sys.stdout.isatty() and sys.stderr.isatty() and not is_dumb


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show in a terminal, and say elsewhere after a second, what the command waits for."""
    if not can_animate():
        notice = Timer(SECONDS_OF_SILENCE, say, [text])
        notice.daemon = True
        notice.start()
        try:
            yield
        finally:
            notice.cancel()
        return
    with console(sys.stderr).status(text):
        yield


class Progress(Protocol):
    """Shows how far a task is, for example ``progress("prompts", 3, 10)``."""

    def __call__(self, name: str, done: int, total: int | None, note: str = "") -> None:
        """Show the state of the task of this name."""


@contextmanager
def bars() -> Iterator[Progress]:
    """Provide a function that shows progress: bars in a terminal, elsewhere a line each minute."""
    if not sys.stderr.isatty() or "NO_COLOR" in os.environ:
        yield _minute_lines()
        return
    from rich import progress as rich

    columns = (rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn())
    label = rich.TextColumn("{task.description}")
    with rich.Progress(label, *columns, console=console(sys.stderr), transient=True) as shown:
        tasks: dict[str, rich.TaskID] = {}

        def show(name: str, done: int, total: int | None, note: str = "") -> None:
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=total)
            description = f"{name} ({note})" if note else name
            shown.update(tasks[name], completed=done, total=total, description=description)

        yield show


def _minute_lines() -> Progress:
    due_s = time.monotonic() + SECONDS_BETWEEN_LINES

    def show(name: str, done: int, total: int | None, note: str = "") -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + SECONDS_BETWEEN_LINES
            share = f"{done} of {total}" if total else str(done)
            say(f"{name}: {share}{note and f' ({note})'}")

    return show


@contextmanager
def interruptible(note: str = "the same command continues the run") -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; {note}")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def stopping(stop: Event, note: str) -> Iterator[None]:
    """Set an event at a first Ctrl-C, and say so; a second one raises ``KeyboardInterrupt``.

    Does nothing where Ctrl-C is ignored, and outside the main thread.
    """

    def first(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        stop.set()
        say(note)

    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None) or current_thread() is not main_thread():
        yield
        return
    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def harmless(text: str) -> str:
    """Replace the characters that would move a terminal's cursor or change its state."""
    return "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)


def print_answer(text: str) -> None:
    """Print the text of a model on standard output; in a terminal, lines break between words."""
    if not sys.stdout.isatty():
        return typer.echo(text)
    return console(sys.stdout).print(harmless(text))


def print_thought(text: str | None) -> None:
    """Print the thought before an answer, dimmed, where a person reads."""
    if text and sys.stderr.isatty():
        console(sys.stderr).print(harmless(text) + "\n", style="dim")


def say(text: str) -> None:
    """Print a notice on standard error; one that cannot be printed stops nothing."""
    with suppress(OSError):
        typer.echo(f"pasta: {harmless(text)}", err=True)
