"""A written answer as the tokens that each of its threads decodes: words with their spaces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pasta_lm.interpreter.trace import Role
from pasta_lm.language.document import Block, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.lexer import Lexeme, LexemeKind
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    MAX_UNITS,
    PIECES,
    PROMISE_OPEN,
    SYNC,
    closing_piece,
)

_WORD = re.compile(r"\s*\S+|\s+")


class ScriptToken(NamedTuple):
    """One token of a script."""

    id: int
    text: str
    """What it adds to its thread's text or topic; nothing if it is a tag."""
    role: Role
    lexeme: Lexeme


def words(text: str) -> list[str]:
    """Split text into words, each with the white space before it; joined they are the text."""
    return _WORD.findall(text)


class WordIds:
    """Small numbers for words, in the order in which they are met; tags have the first ones."""

    def __init__(self) -> None:
        """Begin with the tags alone."""
        self._ids = {piece: number for number, piece in enumerate(PIECES)}

    def __getitem__(self, spelling: str) -> int:
        return self._ids.setdefault(spelling, len(self._ids))

    def encode(self, text: str) -> list[int]:
        """Return a number for each word; a word that is spelled like a tag is still a word."""
        return [self[f"word {word}"] for word in words(text)]


@dataclass(frozen=True, slots=True)
class Script:
    """What one thread decodes."""

    items: Sequence[Item]
    ids: WordIds

    def child(self, number: int) -> Script:
        """Return the script of the thread that its n-th promise forks, counted from 1."""
        blocks = [item for item in self.items if isinstance(item, Block)]
        return Script(blocks[number - 1].items, self.ids)

    def tokens(self) -> Iterator[ScriptToken]:
        """Yield what the thread decodes, up to but not including what ends it."""
        for item in self.items:
            match item:
                case Text(text):
                    yield from self._words(text, Role.CONTENT)
                case Sync():
                    yield self._tag(SYNC, Lexeme(LexemeKind.SYNC))
                case Block():
                    yield from self._promise(item)

    def _promise(self, block: Block) -> Iterator[ScriptToken]:
        units = min(block.units or 1, MAX_UNITS)
        yield self._tag(PROMISE_OPEN, Lexeme(LexemeKind.PROMISE_OPEN))
        yield from self._words(block.topic, Role.TOPIC)
        yield self._tag(closing_piece(units), Lexeme(LexemeKind.PROMISE_CLOSE, units=units))

    def _words(self, text: str, role: Role) -> Iterator[ScriptToken]:
        for word, number in zip(words(text), self.ids.encode(text), strict=True):
            yield ScriptToken(number, word, role, Lexeme(LexemeKind.TEXT, word))

    def block_open(self) -> ScriptToken:
        """Return the ``<async>`` that every block feeds first."""
        return self._tag(ASYNC_OPEN, Lexeme(LexemeKind.ASYNC_OPEN))

    def block_close(self) -> ScriptToken:
        """Return the ``</async>`` that ends a block."""
        return self._tag(ASYNC_CLOSE, Lexeme(LexemeKind.ASYNC_CLOSE))

    def _tag(self, piece: str, lexeme: Lexeme) -> ScriptToken:
        return ScriptToken(self.ids[piece], "", Role.TAG, lexeme)
