"""Lexemes, which the lexer gives to the parser, and events, which the parser reports.

A lexeme is the smallest unit of the grammar: a stretch of text or a piece of a tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pasta_lm.language.faults import Problem


class LexemeKind(Enum):
    """The kinds of lexemes; all but ``TEXT`` and ``FAULT`` are single pieces of a vocabulary."""

    TEXT = "text"
    PROMISE_OPEN = "promise open"
    PROMISE_CLOSE = "promise close"
    ASYNC_OPEN = "async open"
    ASYNC_CLOSE = "async close"
    SYNC = "sync"
    FAULT = "fault"  # a tag with a fault in its own spelling: legal nowhere, so masks exclude it


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A stretch of text or a piece of a tag, read from text or from a token id.

    A promise is three lexemes: ``PROMISE_OPEN``, the topic as ``TEXT``, ``PROMISE_CLOSE``. The
    topic's lexeme and the closing one then have no place of their own: the opening one has it.
    """

    kind: LexemeKind
    text: str = ""  # TEXT: the unescaped text; for tags read from text, their spelling
    units: int | None = None  # PROMISE_CLOSE: the promised length in units of ten tokens
    topic: str | None = None  # ASYNC_OPEN of the annotator form: the topic, unescaped
    start: int = 0  # the offset of the first character in all the text that was fed
    end: int = 0  # the offset after the last character
    problems: tuple[Problem, ...] = ()  # FAULT: the faults of the tag
    meant: LexemeKind | None = None  # FAULT: its kind without the problems, if known


@dataclass(frozen=True, slots=True)
class Text:
    """A stretch of text, as its reader gets it: nothing in it is escaped."""

    text: str


@dataclass(frozen=True, slots=True)
class Promise:
    """A block will stand here, about ``10 * units`` tokens long; None: its length is unknown."""

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
    """The text from here on sees every earlier block."""


Event = Text | Promise | AsyncOpen | AsyncClose | Sync
