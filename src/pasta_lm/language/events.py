"""Name what a parser reports: text, promises, blocks that open and close, syncs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A stretch of text, as its reader gets it: nothing in it is escaped."""

    text: str


@dataclass(frozen=True, slots=True)
class Promise:
    """A chunk will stand here, about ``10 * units`` tokens long; None: nobody says how long."""

    topic: str
    units: int | None


@dataclass(frozen=True, slots=True)
class AsyncOpen:
    """A block begins; only the annotator form gives it its topic here."""

    topic: str | None = None


@dataclass(frozen=True, slots=True)
class AsyncClose:
    """A block ends."""


@dataclass(frozen=True, slots=True)
class Sync:
    """What follows sees every earlier block."""


Event = Text | Promise | AsyncOpen | AsyncClose | Sync
