"""Commands from the interpreter to an engine, and the set of tokens that are legal next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pasta_lm.interpreter.limits import FinishReason
from pasta_lm.interpreter.thread import Thread
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import MAX_UNITS

ASYNC_OPEN = Lexeme(LexemeKind.ASYNC_OPEN)
ASYNC_CLOSE = Lexeme(LexemeKind.ASYNC_CLOSE)


@dataclass(frozen=True, slots=True)
class Fork:
    """The token just decoded ends a promise: ``child`` forks from its parent where it is fed."""

    child: Thread


@dataclass(frozen=True, slots=True)
class Begin:
    """A forked thread feeds ``<async>`` in the coming pass: at once, or later if deferred."""

    thread: Thread


@dataclass(frozen=True, slots=True)
class Resume:
    """This thread feeds its ``<sync/>`` next, in one pass with the last ``</async>`` it needs."""

    thread: Thread
    joined: tuple[Thread, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The thread decodes no more; a block still feeds ``</async>`` if the response goes on."""

    thread: Thread
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Finish:
    """The response is complete."""

    reason: FinishReason


Command = Fork | Begin | Resume | End | Finish


class Legal(NamedTuple):
    """The tokens a thread may decode next; hashable, so that engines can keep a mask for each."""

    kinds: frozenset[LexemeKind]
    end_of_text: bool
    units: int  # the largest legal promise
    in_topic: bool = False
    needs_text: bool = False  # not only white space, which no topic may consist of

    def allows(self, tag: Lexeme) -> bool:
        return tag.kind in self.kinds and (tag.units or 0) <= self.units


EVERYTHING = Legal(frozenset(LexemeKind), True, MAX_UNITS)  # where the mask is off
PLAIN_TEXT = Legal(frozenset({LexemeKind.TEXT}), True, 0)  # the legal set where nothing forks
