"""Plant damage in answers: one part is dropped, doubled, swapped with another answer's, or cut.

A judge that does not prefer the undamaged answer cannot measure what parallel decoding may break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from random import Random
from typing import NamedTuple

from pasta_lm.measure.instructions import WORD

Span = tuple[int, int]
"""Begin and end in characters."""
MIN_WORDS = 5
"""Shorter parts are not damaged: little is lost with a heading."""
NUMBERED = re.compile(r"^(\s*)(?:\*\*)?\(?\d{1,3}[.):]\s*(?=\S)")
BULLET = re.compile(r"^(\s*)[-*+•–]\s+(?=\S)")
_PARAGRAPH = re.compile(r"[^\n]*\S[^\n]*(?:\n[^\n]*\S[^\n]*)*")
_GAP = re.compile(r"[^\S\n]*\n*")
"""White space after a part; the indentation of the line that follows is not in it."""


class Damage(StrEnum):
    """What is done to one part of an answer."""

    DROPPED = "dropped"
    DOUBLED = "doubled"
    """The part follows once more."""
    SWAPPED = "swapped"
    """A part of the answer to another prompt is in its place, behind its own list marker."""
    CUT = "cut"
    """Its second half is missing."""


class Answer(NamedTuple):
    """An answer without tags, and the parts of it that can be damaged."""

    id: str
    prompt: str
    text: str
    parts: tuple[Span, ...]


class DamagedAnswer(NamedTuple):
    """An answer and its damaged copy."""

    answer: Answer
    kind: Damage
    text: str


def parts_of(text: str) -> tuple[Span, ...]:
    """Return the outermost items of a list, or else the paragraphs that introduce nothing.

    Numbered items come before bullets. Parts of fewer than ``MIN_WORDS`` words are left out, and a
    list counts if at least two items are left.
    """
    paragraphs = [match.span() for match in _PARAGRAPH.finditer(text)]
    for marker in (NUMBERED, BULLET):
        items = long_enough(text, _items(text, paragraphs, marker))
        if len(items) > 1:
            return items
    whole = [span for span in paragraphs if not text[slice(*span)].rstrip(" *_").endswith(":")]
    return long_enough(text, whole)


def long_enough(text: str, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the spans of a text that have at least ``MIN_WORDS`` words."""
    return tuple(span for span in spans if len(WORD.findall(text[slice(*span)])) >= MIN_WORDS)


def with_marker(text: str, span: Span) -> Span:
    """Return a span of a text together with the list marker right before it, if there is one."""
    line = text.rfind("\n", 0, span[0]) + 1
    return (line, span[1]) if _marker(text[line : span[1]]) == text[line : span[0]] else span


def plant(answers: Sequence[Answer], seed: int) -> list[DamagedAnswer]:
    """Damage each answer in every way; the same answers and seed give the same damage.

    The damaged part is drawn, and so is the foreign part that a swap puts in its place. Without an
    answer to another prompt there is no swap.

    Args:
        answers: Each has at least one part.
        seed: Of the draws.
    """
    return [
        DamagedAnswer(answer, kind, text)
        for answer in answers
        for kind in Damage
        if (text := _damaged(answer, kind, answers, seed)) != answer.text
    ]


def _damaged(answer: Answer, kind: Damage, answers: Sequence[Answer], seed: int) -> str:
    draws = Random(f"{seed}/{kind}/{answer.id}")
    text, (begin, end) = answer.text, draws.choice(answer.parts)
    part = text[begin:end]
    match kind:
        case Damage.DROPPED:
            return _without(text, begin, end)
        case Damage.DOUBLED:
            return f"{text[:end]}{_separator(text, begin, end)}{part}{text[end:]}"
        case Damage.CUT:
            return f"{text[:begin]}{_first_half(part)}{text[end:]}"
    others = [other for other in answers if other.prompt != answer.prompt]
    if not others:
        return text
    other = draws.choice(others)
    foreign = other.text[slice(*draws.choice(other.parts))]
    return text[:begin] + _marker(part) + foreign.removeprefix(_marker(foreign)) + text[end:]


def _items(text: str, paragraphs: Sequence[Span], marker: re.Pattern[str]) -> list[Span]:
    """Return the outermost items of a list; an item ends with its paragraph."""
    lines = [
        (len(match[1]), place, end)
        for begin, end in paragraphs
        for place, line in _lines(text, begin, end)
        if (match := marker.match(line))
    ]
    least = min((indent for indent, _, _ in lines), default=0)
    items = [(place, end) for indent, place, end in lines if indent == least]
    spans = [(a[0], min(a[1], b[0])) for a, b in pairwise([*items, (len(text), 0)])]
    return [(begin, begin + len(text[begin:end].rstrip())) for begin, end in spans]


def _lines(text: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    for line in text[begin:end].splitlines(keepends=True):
        yield begin, line
        begin += len(line)


def _without(text: str, begin: int, end: int) -> str:
    gap = _GAP.match(text, end)
    return (text[:begin] + text[gap.end() if gap else end :]).rstrip()


def _separator(text: str, begin: int, end: int) -> str:
    """Return the white space around a part, that after it if there is any."""
    after = _GAP.match(text, end)
    before = text[:begin]
    return (after and after[0]) or before[len(before.rstrip()) :] or " "


def _first_half(part: str) -> str:
    """Return a part up to the last word of its first half that ends no sentence."""
    half = len(part) // 2
    ends = [gap.start() for gap in re.finditer(r"\s+", part[: half + 1])]
    return part[: max((end for end in ends if end and part[end - 1] not in ".!?:;"), default=half)]


def _marker(part: str) -> str:
    """Return the list marker at the beginning of a part; empty if there is none."""
    match = NUMBERED.match(part) or BULLET.match(part)
    return match[0] if match else ""
