"""Where output goes and what it may look like: data to stdout, the rest to stderr."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console

THREAD_STYLES = ("cyan", "magenta", "green", "yellow", "blue", "red")


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that pictures are drawn with."""

    decodes: str = "\u2501"
    promises: str = "\u2533"
    syncs: str = "\u253b"
    waits: str = "\u2504"
    open: str = "\u2500"
    """What a promise has not got yet."""


ASCII = Glyphs(decodes="=", promises="v", syncs="^", waits=".", open="-")


def console(stream: TextIO) -> Console:
    """Return a console on a stream; where that is no terminal it has no colour, 80 columns."""
    is_terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=is_terminal,
        no_color=not is_terminal or "NO_COLOR" in os.environ,
        highlight=False,
        markup=False,
        emoji=False,
    )


def glyphs(where: Console) -> Glyphs:
    """Return characters that a console can show."""
    return ASCII if where.options.ascii_only else Glyphs()


def can_animate() -> bool:
    """Tell whether someone watches: both streams are a terminal that can move its cursor."""
    is_dumb = os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
    return sys.stdout.isatty() and sys.stderr.isatty() and not is_dumb


def thread_style(thread: int) -> str:
    """Return the style of a thread; main has none."""
    return THREAD_STYLES[(thread - 1) % len(THREAD_STYLES)] if thread else ""


def harmless(text: str) -> str:
    """Return text without characters that would move a terminal's cursor or change its state."""
    return "".join(one if one.isprintable() or one in "\n\t" else " " for one in text)


def thread_name(thread: int, topic: str | None) -> str:
    """Return how a thread is called in pictures; its number is readable without colour."""
    return "main" if topic is None else f"{thread} {' '.join(harmless(topic).split())}"
