"""Turn text, in any pieces, into lexemes; hold back only the possible start of a tag or entity.

Operations: ``feed`` and ``close``; nothing is read, nothing waits. A tag that breaks the rules of
its own spelling comes out as a ``FAULT`` that carries its problems; which tag may stand where is
not known here.

Linear in the text however it is cut: a search never starts again before the place it has reached,
and what is held back is bounded. A tag has at most ``MAX_TAG_CHARACTERS``; of an entity without
end, ``&amp;amp;amp;...``, all but its last ``amp;`` is passed on, because it does not matter
which of them reading removes.
"""

from __future__ import annotations

import re

from pasta_lm.language.events import Lexeme, LexemeKind
from pasta_lm.language.faults import Fault, Problem
from pasta_lm.language.reading import fault, read_tag
from pasta_lm.language.tags import (
    ASYNC_CLOSE,
    ASYNC_OPEN,
    MAX_TAG_CHARACTERS,
    PROMISE_OPEN,
    SYNC,
    TAG_START,
    TAG_START_AT_END,
    UNDECIDED,
    UNDECIDED_TAG,
    closing_piece,
    unescape,
)

__all__ = ["Lexeme", "LexemeKind", "Lexer"]

_PLAIN = {
    ASYNC_OPEN: LexemeKind.ASYNC_OPEN,
    ASYNC_CLOSE: LexemeKind.ASYNC_CLOSE,
    SYNC: LexemeKind.SYNC,
}
_SPELLING = {kind: tag for tag, kind in _PLAIN.items()} | {LexemeKind.PROMISE_OPEN: PROMISE_OPEN}

# The characters that decide a tag, by the open quote: a > ends it, another tag's start breaks it.
_STOPS = {"": re.compile("[\"'<>]"), '"': re.compile('["<]'), "'": re.compile("['<]")}


def spelling(tag: Lexeme) -> str:
    """Return the piece of a vocabulary that spells a lexeme of a tag."""
    if tag.kind is LexemeKind.PROMISE_CLOSE:
        return closing_piece(tag.units or 1)
    return _SPELLING[tag.kind]


class Lexer:
    """Text in, lexemes out; the same lexemes however the text is cut, adjacent text merged.

    All of its state is immutable, so ``copy.copy`` returns an independent lexer in the same state.
    """

    __slots__ = ("_buffer", "_is_run", "_offset", "_quote", "_searched")

    def __init__(self) -> None:
        self._buffer = ""
        self._offset = 0  # of the buffer in all the text fed
        self._searched = 0  # how much of the tag at the buffer's start is known; 0: no tag
        self._quote = ""  # the quote that is open there
        self._is_run = False  # the buffer's first & was passed on before: see _pass_run

    def feed(self, text: str) -> list[Lexeme]:
        """Take the next piece of text and return the lexemes that are decided by it."""
        self._buffer += text
        return self._lex(at_end=False)

    def close(self) -> list[Lexeme]:
        """End the text and return the lexemes that were held back."""
        return self._lex(at_end=True)

    def _lex(self, *, at_end: bool) -> list[Lexeme]:
        lexemes: list[Lexeme] = []
        tag_start = TAG_START_AT_END if at_end else TAG_START
        at = 0
        while True:
            if not self._searched:
                match = tag_start.search(self._buffer, at)
                if match is None:
                    at = self._pass_tail(lexemes, at, at_end=at_end)
                    break
                self._pass_text(lexemes, at, match.start())
                at = match.start()
                if match["plain"]:  # a tag without attributes in its one canonical spelling
                    at = match.end()
                    lexemes.append(self._lexeme(_PLAIN[match.group()], match.start(), at))
                    continue
                self._searched = match.end() - at
            end = self._pass_tag(lexemes, at, at_end=at_end)
            if end is None:
                break
            at = end
            self._searched, self._quote = 0, ""
        self._buffer = self._buffer[at:]
        self._offset += at
        return lexemes

    def _lexeme(self, kind: LexemeKind, at: int, end: int, text: str | None = None) -> Lexeme:
        """Return the lexeme between two indexes of the buffer."""
        source = self._buffer[at:end] if text is None else text
        return Lexeme(kind, source, None, None, self._offset + at, self._offset + end)

    def _pass_text(self, lexemes: list[Lexeme], at: int, end: int) -> None:
        """Report the text between two indexes of the buffer."""
        if at == end:
            return
        text = unescape(self._buffer[at:end])
        if self._is_run:
            text, at, self._is_run = text[1:], at + 1, False
        if text:
            lexemes.append(self._lexeme(LexemeKind.TEXT, at, end, text))

    def _pass_tail(self, lexemes: list[Lexeme], at: int, *, at_end: bool) -> int:
        """Report the text from an index on, and return the index from which it is held back."""
        match = None if at_end else UNDECIDED.search(self._buffer, at)
        if match is None:
            self._pass_text(lexemes, at, len(self._buffer))
            return len(self._buffer)
        self._pass_text(lexemes, at, match.start())
        excess = len(match["run"] or "") - len("amp;")
        return self._pass_run(lexemes, match.start(), excess) if excess > 0 else match.start()

    def _pass_run(self, lexemes: list[Lexeme], at: int, excess: int) -> int:
        """Report all but the last ``amp;`` of an undecided entity; its ``&`` stands in for both."""
        end = at + 1 + excess
        begin = at + 1 if self._is_run else at
        lexemes.append(self._lexeme(LexemeKind.TEXT, begin, end))
        self._buffer = f"{self._buffer[: end - 1]}&{self._buffer[end:]}"
        self._is_run = True
        return end - 1

    def _pass_tag(self, lexemes: list[Lexeme], at: int, *, at_end: bool) -> int | None:
        """Report the tag at an index and return its end; None while it is undecided."""
        stop = self._find_stop(at, at_end=at_end)
        if stop is None:
            return None
        if stop < len(self._buffer) and self._buffer[stop] == ">" and stop < self._limit(at):
            lexemes.extend(read_tag(self._buffer[at : stop + 1], self._offset + at))
            return stop + 1
        return self._pass_broken_tag(lexemes, at, stop)

    def _find_stop(self, at: int, *, at_end: bool) -> int | None:
        """Return the index of the tag's last ``>``, or of the first that cannot be in it."""
        limit = self._limit(at)
        tag_start = TAG_START_AT_END if at_end else TAG_START
        while match := _STOPS[self._quote].search(self._buffer, at + self._searched, limit):
            self._searched = match.start() - at
            if match.group() == ">":
                return match.start()
            if match.group() == "<":
                if tag_start.match(self._buffer, match.start()):
                    return match.start()
                if not at_end and UNDECIDED_TAG.match(self._buffer, match.start()):
                    return None
            else:
                self._quote = "" if self._quote else match.group()
            self._searched += 1
        self._searched = min(limit, len(self._buffer)) - at
        return at + self._searched if at_end or len(self._buffer) >= limit else None

    def _pass_broken_tag(self, lexemes: list[Lexeme], at: int, stop: int) -> int:
        """Report a tag that has no end, up to its first ``>`` in an open quote if it has one."""
        bracket = self._buffer.find(">", at, stop)
        end = stop if bracket < 0 else bracket + 1
        start = self._offset + at
        detail = "a quote is open" if bracket >= 0 else "its > is missing"
        wrong = Fault.UNFINISHED
        if bracket < 0 and stop == self._limit(at):
            wrong, detail = Fault.TOO_LONG, ""
        problem = Problem(wrong, detail, start, self._offset + end)
        lexemes.append(fault(self._buffer[at:end], start, (problem,)))
        return end

    def _limit(self, at: int) -> int:
        return at + MAX_TAG_CHARACTERS
