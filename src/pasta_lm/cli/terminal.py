"""Standard streams, files and the terminal: what verbs read, write and show.

Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

import typer

from pasta_lm.cli.exit_codes import INTERRUPTED
from pasta_lm.errors import InputError, MissingFileError, PastaError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

STDIN = "-"
MIN_WIDTH = 20  # columns; COLUMNS=0 and other fancies are no terminal's
SECONDS_BETWEEN_LINES = 60.0
THREAD_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red")
QUIET_SETTINGS = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",  # bars of the conversion of GGUF files
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that pictures are drawn with."""

    decodes: str = "\u2501"
    promises: str = "\u2533"
    syncs: str = "\u253b"
    waits: str = "\u2504"
    open: str = "\u2500"
    """The part of a promised length that is not decoded yet."""


ASCII = Glyphs(decodes="=", promises="v", syncs="^", waits=".", open="-")


class Progress(Protocol):
    """Shows how far one task is, for example ``progress("prompts", 3, 10)``."""

    def __call__(self, name: str, done: int, total: int | None, note: str = "") -> None:
        """Show the state of the task of this name."""


def silence_libraries() -> None:
    """Turn off progress bars and advice of the libraries under a model, unless the user set them.

    ``main`` calls it before anything heavy is imported.
    """
    import logging

    for name, value in QUIET_SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in ("torch", "transformers", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")


def read_text(file: str) -> str:
    """Return the text of a file, ``-`` for standard input, with its line ends as they are.

    Raises:
        InputError: there is no such file, or it is not UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except FileNotFoundError as exc:
        raise MissingFileError(file) from exc
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
        hint = "name a file in a folder that exists and that you may write to"
        raise PastaError(f"{file} cannot be written: {exc.strerror}", hint=hint) from exc


def console(stream: TextIO) -> Console:
    """Return a console on a stream; where that is no terminal it has no colour, 80 columns."""
    from rich.console import Console

    is_terminal = stream.isatty()
    drawn = Console(
        file=stream,
        force_terminal=is_terminal,
        no_color=not is_terminal or "NO_COLOR" in os.environ,
        highlight=False,
        markup=False,
        emoji=False,
    )
    if drawn.width < MIN_WIDTH:
        drawn.width = MIN_WIDTH
    return drawn


def glyphs(where: Console) -> Glyphs:
    """Return characters that a console can show."""
    return ASCII if where.options.ascii_only else Glyphs()


def can_animate() -> bool:
    """Return whether both streams are a terminal whose cursor can be moved."""
    is_dumb = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    return sys.stdout.isatty() and sys.stderr.isatty() and not is_dumb


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show in a terminal what the command waits for."""
    if not can_animate():
        yield
        return
    with console(sys.stderr).status(text):
        yield


def has_bars() -> bool:
    """Return whether progress bars are shown: standard error is a terminal, NO_COLOR is not set."""
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ


@contextmanager
def bars() -> Iterator[Progress]:
    """Provide a function that shows progress: bars in a terminal, nothing elsewhere."""
    if not has_bars():
        yield lambda name, done, total, note="": None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with ProgressBars(
        *columns, TimeRemainingColumn(), console=console(sys.stderr), transient=True
    ) as shown:
        tasks: dict[str, TaskID] = {}

        def show(name: str, done: int, total: int | None, note: str = "") -> None:
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=total)
            description = f"{name} ({note})" if note else name
            shown.update(tasks[name], completed=done, total=total, description=description)

        yield show


def minute_lines() -> Callable[[str], None]:
    """Return a function that prints a line of progress each minute, where there are no bars."""
    due_s = time.monotonic() + SECONDS_BETWEEN_LINES

    def report(line: str) -> None:
        nonlocal due_s
        if time.monotonic() >= due_s and not has_bars():
            due_s = time.monotonic() + SECONDS_BETWEEN_LINES
            say(line)

    return report


@contextmanager
def interruptible(note: str = "the same command continues the run") -> Iterator[None]:
    """End the command at a Ctrl-C, with a note on what is left of its work."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; {note}")
        raise typer.Exit(INTERRUPTED) from None


def thread_style(thread: int) -> str:
    """Return the style of a thread; main has none."""
    return THREAD_STYLES[(thread - 1) % len(THREAD_STYLES)] if thread else ""


def harmless(text: str) -> str:
    """Return text without characters that would move a terminal's cursor or change its state."""
    return "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)


def thread_name(thread: int, topic: str | None) -> str:
    """Return the label of a thread in pictures; its number is readable without colour."""
    return "main" if topic is None else f"{thread} {' '.join(harmless(topic).split())}"


def say(text: str) -> None:
    """Print a notice on standard error; one that cannot be printed stops nothing."""
    with suppress(OSError):
        typer.echo(f"pasta: {harmless(text)}", err=True)
