"""Read one complete tag, as it was spelled: its lexemes, or a fault that names every problem.

Lenient where the paper's own figures are: single quotes, no quotes, attributes in any order, white
space and line breaks between them and before the end. Knows nothing of the text around the tag.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pasta_lm.language.events import Lexeme, LexemeKind
from pasta_lm.language.faults import Fault, Problem
from pasta_lm.language.tags import MAX_TOPIC_CHARACTERS, MAX_TOPIC_WORDS, unescape_topic

_HEAD = re.compile(r"<(/?)([a-z]+)")
_TAIL = re.compile(r"[ \t\r\n]*(/?)>\Z")
_ATTRIBUTE = re.compile(
    r"""[ \t\r\n]+([A-Za-z_][\w.:-]*)[ \t\r\n]*=[ \t\r\n]*("[^"]*"|'[^']*'|[^\s"'=<>/]+)"""
)
_LENGTH = re.compile(r"0*[1-9][0-9]*")

_SHAPES: dict[tuple[str, str, str], LexemeKind] = {
    ("", "promise", "/"): LexemeKind.PROMISE_OPEN,
    ("", "async", ""): LexemeKind.ASYNC_OPEN,
    ("/", "async", ""): LexemeKind.ASYNC_CLOSE,
    ("", "sync", "/"): LexemeKind.SYNC,
}
_MEANT: dict[tuple[str, str, str], LexemeKind] = {
    ("", "promise", ""): LexemeKind.PROMISE_OPEN,
    ("/", "async", "/"): LexemeKind.ASYNC_CLOSE,
    ("", "sync", ""): LexemeKind.SYNC,
}
_ALLOWED: dict[LexemeKind, tuple[str, ...]] = {
    LexemeKind.PROMISE_OPEN: ("topic", "tokens"),
    LexemeKind.ASYNC_OPEN: ("topic",),
}


class _Attribute(NamedTuple):
    name: str
    value: str
    start: int
    end: int


def read_tag(source: str, start: int) -> tuple[Lexeme, ...]:
    """Read a tag from its ``<`` to its ``>``, the first of which stands at offset ``start``."""
    kind, attributes, problems = _read_shape(source, start)
    topic, units = None, None
    if kind in _ALLOWED:
        topic = _read_topic(attributes.get("topic"), problems)
    if kind is LexemeKind.PROMISE_OPEN:
        units = _read_length(attributes.get("tokens"), problems)
        missing = [name for name in _ALLOWED[kind] if name not in attributes]
        if missing:
            _add(problems, Fault.MISSING_ATTRIBUTE, " and ".join(missing), start, len(source))
    end = start + len(source)
    if problems or kind is None:
        return (fault(source, start, tuple(problems), meant=kind, topic=topic, units=units),)
    if kind is LexemeKind.PROMISE_OPEN:
        return (
            Lexeme(kind, source, start=start, end=end),
            Lexeme(LexemeKind.TEXT, topic or "", start=end, end=end),
            Lexeme(LexemeKind.PROMISE_CLOSE, units=units, start=end, end=end),
        )
    return (Lexeme(kind, source, topic=topic, start=start, end=end),)


def fault(
    source: str,
    start: int,
    problems: tuple[Problem, ...],
    *,
    meant: LexemeKind | None = None,
    topic: str | None = None,
    units: int | None = None,
) -> Lexeme:
    """Return the lexeme of a tag that has problems, with what could be read of it."""
    return Lexeme(
        LexemeKind.FAULT, source, units, topic, start, start + len(source), problems, meant
    )


def _read_shape(
    source: str, start: int
) -> tuple[LexemeKind | None, dict[str, _Attribute], list[Problem]]:
    """Return the kind of a tag, real or intended, its attributes, and the faults of both."""
    problems: list[Problem] = []
    head = _HEAD.match(source)
    assert head is not None, "the lexer finds tags by their names"
    attributes, rest = _read_attributes(source, head.end(), start)
    tail = _TAIL.match(source, rest)
    if tail is None:  # something is neither an attribute nor the end
        detail = _clip(source[rest:].strip())
        _add(problems, Fault.MALFORMED, detail, start + rest, len(source) - rest)
        return None, {}, problems
    shape = (head[1], head[2], tail[1])
    kind = _SHAPES.get(shape)
    if kind is None:
        kind = _MEANT.get(shape)
        name = f"<{head[1]}{head[2]}{' ...' if attributes else ''}{tail[1]}>"
        _add(problems, Fault.WRONG_SLASH, name, start, len(source))
    allowed = _ALLOWED.get(kind, ()) if kind else ("topic", "tokens")
    return kind, _sort(attributes, allowed, problems), problems


def _read_attributes(source: str, at: int, start: int) -> tuple[list[_Attribute], int]:
    """Return the attributes from index ``at`` on, and the index after the last of them."""
    attributes = []
    while match := _ATTRIBUTE.match(source, at):
        at = match.end()
        # The figures of the paper spell values with single quotes and without any.
        value = match[2][1:-1] if match[2][0] in "\"'" else match[2]
        attributes.append(_Attribute(match[1], value, start + match.start(1), start + at))
    return attributes, at


def _sort(
    attributes: list[_Attribute], allowed: tuple[str, ...], problems: list[Problem]
) -> dict[str, _Attribute]:
    """Keep the first of each allowed attribute, and report the others."""
    kept: dict[str, _Attribute] = {}
    for attribute in attributes:
        if attribute.name not in allowed:
            wrong = Fault.UNKNOWN_ATTRIBUTE
        elif attribute.name in kept:
            wrong = Fault.REPEATED_ATTRIBUTE
        else:
            kept[attribute.name] = attribute
            continue
        length = attribute.end - attribute.start
        _add(problems, wrong, _clip(attribute.name), attribute.start, length)
    return kept


def _read_topic(attribute: _Attribute | None, problems: list[Problem]) -> str | None:
    if attribute is None:
        return None
    topic = unescape_topic(attribute.value)
    place = attribute.start, attribute.end - attribute.start
    num_words = len(topic.split())
    if num_words == 0:
        _add(problems, Fault.BLANK_TOPIC, "", *place)
    if num_words > MAX_TOPIC_WORDS:
        _add(problems, Fault.WORDY_TOPIC, str(num_words), *place)
    if len(topic) > MAX_TOPIC_CHARACTERS:
        _add(problems, Fault.LONG_TOPIC, str(len(topic)), *place)
    return topic


def _read_length(attribute: _Attribute | None, problems: list[Problem]) -> int | None:
    if attribute is None:
        return None
    if _LENGTH.fullmatch(attribute.value):
        return int(attribute.value)  # at most 1,000 digits: the tag is bounded
    length = attribute.end - attribute.start
    _add(problems, Fault.BAD_LENGTH, f'"{_clip(attribute.value)}"', attribute.start, length)
    return None


def _add(problems: list[Problem], wrong: Fault, detail: str, start: int, length: int) -> None:
    problems.append(Problem(wrong, detail, start, start + length))


def _clip(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:27]}..."
