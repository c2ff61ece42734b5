"""Turn text, in any pieces, into lexemes; hold back only the possible start of a tag or entity.

A tag that breaks the rules of its own spelling comes out as a ``FAULT`` with all its problems.
Linear in the text however it is cut: a search never starts again before the place it has reached,
and what is held back is bounded. Of an entity without end, ``&amp;amp;amp;...``, all but its last
``amp;`` is passed on, because it does not matter which of them reading removes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from pasta_lm.language import tags
from pasta_lm.language.events import Lexeme, LexemeKind
from pasta_lm.language.faults import Fault, Problem

__all__ = ["Lexeme", "LexemeKind", "Lexer"]

_KINDS = {
    tags.PROMISE_OPEN: LexemeKind.PROMISE_OPEN,
    tags.ASYNC_OPEN: LexemeKind.ASYNC_OPEN,
    tags.ASYNC_CLOSE: LexemeKind.ASYNC_CLOSE,
    tags.SYNC: LexemeKind.SYNC,
}
_SPELLING = {kind: tag for tag, kind in _KINDS.items()}

# The characters that decide a tag, by the open quote: a > ends it, another tag's start breaks it.
_STOPS = {"": re.compile("[\"'<>]"), '"': re.compile('["<]'), "'": re.compile("['<]")}


def spelling(tag: Lexeme) -> str:
    if tag.kind is LexemeKind.PROMISE_CLOSE:
        return tags.closing_piece(tag.units or 1)
    return _SPELLING[tag.kind]


class Lexer:
    """Text in, lexemes out; the same lexemes however the text is cut, adjacent text merged."""

    def __init__(self) -> None:
        self._buffer = ""
        self._offset = 0  # where the buffer begins in all the text fed
        self._searched = 0  # how much of the tag at the buffer's start is known; 0: no tag
        self._quote = ""  # the quote that is open there
        self._is_run = False  # the buffer's first & was passed on before: see _pass_run

    def feed(self, text: str) -> list[Lexeme]:
        """Take the next piece of text and return the lexemes that are decided by it."""
        self._buffer += text
        return self._lex(at_end=False)

    def close(self) -> list[Lexeme]:
        return self._lex(at_end=True)

    def _lex(self, *, at_end: bool) -> list[Lexeme]:
        lexemes: list[Lexeme] = []
        tag_start = tags.TAG_START_AT_END if at_end else tags.TAG_START
        at = 0
        while True:
            if not self._searched:
                if (match := tag_start.search(self._buffer, at)) is None:
                    at = self._pass_tail(lexemes, at, at_end=at_end)
                    break
                self._pass_text(lexemes, at, match.start())
                at = match.start()
                if match["plain"]:  # a tag without attributes in its one canonical spelling
                    at = match.end()
                    lexemes.append(self._lexeme(_KINDS[match.group()], match.start(), at))
                    continue
                self._searched = match.end() - at
            if (end := self._pass_tag(lexemes, at, at_end=at_end)) is None:
                break
            at = end
            self._searched, self._quote = 0, ""
        self._buffer = self._buffer[at:]
        self._offset += at
        return lexemes

    def _lexeme(self, kind: LexemeKind, at: int, end: int, text: str | None = None) -> Lexeme:
        source = self._buffer[at:end] if text is None else text
        return Lexeme(kind, source, None, None, self._offset + at, self._offset + end)

    def _pass_text(self, lexemes: list[Lexeme], at: int, end: int) -> None:
        if at == end:
            return
        text = tags.unescape(self._buffer[at:end])
        if self._is_run:
            text, at, self._is_run = text[1:], at + 1, False
        if text:
            lexemes.append(self._lexeme(LexemeKind.TEXT, at, end, text))

    def _pass_tail(self, lexemes: list[Lexeme], at: int, *, at_end: bool) -> int:
        match = None if at_end else tags.UNDECIDED.search(self._buffer, at)
        if match is None:
            self._pass_text(lexemes, at, len(self._buffer))
            return len(self._buffer)
        self._pass_text(lexemes, at, match.start())
        excess = len(match["run"] or "") - len("amp;")
        return self._pass_run(lexemes, match.start(), excess) if excess > 0 else match.start()

    def _pass_run(self, lexemes: list[Lexeme], at: int, excess: int) -> int:
        # All but the last ``amp;`` of an undecided entity is text; an ``&`` stands in for it.
        end = at + 1 + excess
        begin = at + 1 if self._is_run else at
        lexemes.append(self._lexeme(LexemeKind.TEXT, begin, end))
        self._buffer = f"{self._buffer[: end - 1]}&{self._buffer[end:]}"
        self._is_run = True
        return end - 1

    def _pass_tag(self, lexemes: list[Lexeme], at: int, *, at_end: bool) -> int | None:
        if (stop := self._find_stop(at, at_end=at_end)) is None:
            return None
        if stop < at + tags.MAX_TAG_CHARACTERS and self._buffer[stop : stop + 1] == ">":
            lexemes.extend(_read_tag(self._buffer[at : stop + 1], self._offset + at))
            return stop + 1
        return self._pass_broken_tag(lexemes, at, stop)

    def _find_stop(self, at: int, *, at_end: bool) -> int | None:
        # The last character of the tag, or the first that cannot be in it; None: undecided.
        limit = at + tags.MAX_TAG_CHARACTERS
        tag_start = tags.TAG_START_AT_END if at_end else tags.TAG_START
        while match := _STOPS[self._quote].search(self._buffer, at + self._searched, limit):
            self._searched = match.start() - at
            if match.group() == ">":
                return match.start()
            if match.group() == "<":
                if tag_start.match(self._buffer, match.start()):
                    return match.start()
                if not at_end and tags.UNDECIDED_TAG.match(self._buffer, match.start()):
                    return None
            else:
                self._quote = "" if self._quote else match.group()
            self._searched += 1
        self._searched = min(limit, len(self._buffer)) - at
        return at + self._searched if at_end or len(self._buffer) >= limit else None

    def _pass_broken_tag(self, lexemes: list[Lexeme], at: int, stop: int) -> int:
        bracket = self._buffer.find(">", at, stop)
        end = stop if bracket < 0 else bracket + 1
        detail = "a quote is open" if bracket >= 0 else "its > is missing"
        wrong = Fault.UNFINISHED
        if bracket < 0 and stop == at + tags.MAX_TAG_CHARACTERS:
            wrong, detail = Fault.TOO_LONG, ""
        problem = Problem(wrong, detail, self._offset + at, self._offset + end)
        lexemes.append(replace(self._lexeme(LexemeKind.FAULT, at, end), problems=(problem,)))
        return end


# One whole tag. Lenient where the paper's own figures are: single quotes, no quotes, attributes in
# any order, white space and line breaks between them and before the end.

_HEAD = re.compile(r"<(/?)([a-z]+)")
_TAIL = re.compile(r"[ \t\r\n]*(/?)>\Z")
_ATTRIBUTE = re.compile(
    r"""[ \t\r\n]+([A-Za-z_][\w.:-]*)[ \t\r\n]*=[ \t\r\n]*("[^"]*"|'[^']*'|[^\s"'=<>/]+)"""
)
_LENGTH = re.compile(r"0*[1-9][0-9]*")

_SHAPES = {
    ("", "promise", "/"): LexemeKind.PROMISE_OPEN,
    ("", "async", ""): LexemeKind.ASYNC_OPEN,
    ("/", "async", ""): LexemeKind.ASYNC_CLOSE,
    ("", "sync", "/"): LexemeKind.SYNC,
}
_MEANT = {
    ("", "promise", ""): LexemeKind.PROMISE_OPEN,
    ("/", "async", "/"): LexemeKind.ASYNC_CLOSE,
    ("", "sync", ""): LexemeKind.SYNC,
}
_ALLOWED: dict[LexemeKind | None, tuple[str, ...]] = {
    LexemeKind.PROMISE_OPEN: ("topic", "tokens"),
    LexemeKind.ASYNC_OPEN: ("topic",),
    None: ("topic", "tokens"),
}


class _Attribute(NamedTuple):
    name: str
    value: str
    start: int
    end: int

    def problem(self, fault: Fault, detail: str = "") -> Problem:
        return Problem(fault, detail, self.start, self.end)


def _read_tag(source: str, start: int) -> list[Lexeme]:
    kind, attributes, problems = _read_shape(source, start)
    end = start + len(source)
    topic, units = None, None
    if kind is not None and "topic" in attributes:
        topic = _read_topic(attributes["topic"], problems)
    if kind is LexemeKind.PROMISE_OPEN:
        length = attributes.get("tokens")
        if length and _LENGTH.fullmatch(length.value):
            units = int(length.value)  # at most 1,000 digits: the tag is bounded
        elif length:
            problems.append(length.problem(Fault.BAD_LENGTH, f'"{_clip(length.value)}"'))
        if missing := [name for name in _ALLOWED[kind] if name not in attributes]:
            problems.append(Problem(Fault.MISSING_ATTRIBUTE, " and ".join(missing), start, end))
    if problems or kind is None:
        return [Lexeme(LexemeKind.FAULT, source, units, topic, start, end, tuple(problems), kind)]
    if kind is LexemeKind.PROMISE_OPEN:
        return [
            Lexeme(kind, source, start=start, end=end),
            Lexeme(LexemeKind.TEXT, topic or "", start=end, end=end),
            Lexeme(LexemeKind.PROMISE_CLOSE, units=units, start=end, end=end),
        ]
    return [Lexeme(kind, source, topic=topic, start=start, end=end)]


def _read_shape(
    source: str, start: int
) -> tuple[LexemeKind | None, dict[str, _Attribute], list[Problem]]:
    head = _HEAD.match(source)
    assert head is not None, "the lexer finds tags by their names"
    attributes, rest = list[_Attribute](), head.end()
    while match := _ATTRIBUTE.match(source, rest):
        rest = match.end()
        # The figures of the paper spell values with single quotes and without any.
        value = match[2][1:-1] if match[2][0] in "\"'" else match[2]
        attributes.append(_Attribute(match[1], value, start + match.start(1), start + rest))
    tail, end = _TAIL.match(source, rest), start + len(source)
    if tail is None:  # something is neither an attribute nor the end
        return None, {}, [Problem(Fault.MALFORMED, _clip(source[rest:].strip()), start + rest, end)]
    shape, problems = (head[1], head[2], tail[1]), []
    if (kind := _SHAPES.get(shape)) is None:
        kind = _MEANT.get(shape)
        name = f"<{head[1]}{head[2]}{' ...' if attributes else ''}{tail[1]}>"
        problems.append(Problem(Fault.WRONG_SLASH, name, start, end))
    kept: dict[str, _Attribute] = {}
    for attribute in attributes:
        if attribute.name not in _ALLOWED.get(kind, ()):
            problems.append(attribute.problem(Fault.UNKNOWN_ATTRIBUTE, _clip(attribute.name)))
        elif kept.setdefault(attribute.name, attribute) is not attribute:
            problems.append(attribute.problem(Fault.REPEATED_ATTRIBUTE, _clip(attribute.name)))
    return kind, kept, problems


def _read_topic(attribute: _Attribute, problems: list[Problem]) -> str:
    topic = tags.unescape_topic(attribute.value)
    num_words = len(topic.split())
    if num_words == 0:
        problems.append(attribute.problem(Fault.BLANK_TOPIC))
    if num_words > tags.MAX_TOPIC_WORDS:
        problems.append(attribute.problem(Fault.WORDY_TOPIC, str(num_words)))
    if len(topic) > tags.MAX_TOPIC_CHARACTERS:
        problems.append(attribute.problem(Fault.LONG_TOPIC, str(len(topic))))
    return topic


def _clip(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:27]}..."
