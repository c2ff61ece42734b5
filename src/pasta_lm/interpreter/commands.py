"""What the interpreter asks of an engine, and what it lets a thread decode next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.thread import Thread
from pasta_lm.language.lexer import Lexeme, LexemeKind

ASYNC_OPEN = Lexeme(LexemeKind.ASYNC_OPEN)
ASYNC_CLOSE = Lexeme(LexemeKind.ASYNC_CLOSE)
SYNC = Lexeme(LexemeKind.SYNC)


@dataclass(frozen=True, slots=True)
class Fork:
    """Start a thread: ``forced`` is the first token that it feeds, in the coming pass."""

    child: Thread
    parent: Thread
    forced: Lexeme = ASYNC_OPEN


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this thread feed nothing until it is resumed."""

    thread: Thread


@dataclass(frozen=True, slots=True)
class Resume:
    """Let this thread feed ``forced`` next, together with the last block that it waited for."""

    thread: Thread
    joined: tuple[Thread, ...]
    forced: Lexeme = SYNC


@dataclass(frozen=True, slots=True)
class End:
    """The thread decodes no more; a block still feeds its ``</async>`` if the response goes on."""

    thread: Thread
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Finish:
    """The response is complete."""

    reason: FinishReason


Command = Fork | Wait | Resume | End | Finish


class Legal(NamedTuple):
    """What a thread may decode next; hashable, so that engines can keep a mask for each."""

    kinds: frozenset[LexemeKind]
    end_of_text: bool
    units: int
    """The largest legal promise."""
    in_topic: bool = False
    needs_text: bool = False
    """Only text with a character other than space: a topic may not end without one."""
