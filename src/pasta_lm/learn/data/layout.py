"""Split a plain answer by its layout: list items, sections, bold leads, table rows, lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pasta_lm.language.tags import MAX_TOPIC_CHARACTERS, MAX_TOPIC_WORDS

MIN_BLOCK_WORDS = 5
"""The paper's annotator has the same bound (PASTA, appendix on annotation)."""
MIN_BLOCKS = 2
"""A single block runs beside nothing."""

_ORDINALS = "First|Second|Third|Fourth|Fifth|Sixth|Seventh|Eighth|Ninth|Tenth|Firstly|Secondly"
_ITEM = re.compile(rf"(?:[-*+]|\d{{1,3}}[.)])[ \t]+|(?:{_ORDINALS}|Thirdly),[ \t]+")
_HEADING = re.compile(r"(#{1,6})[ \t]+")
_BOLD = re.compile(r"(\*\*|__)(?=\S)(.+?)\1")
_BOLD_LABEL = re.compile(r"(\*\*|__)(?=\S)(.+?)\1:?")
_ROW = re.compile(r"\|.*\|[ \t]*\Z")
_RULE = re.compile(r"\|?[ \t:|-]*-[ \t:|-]*\|?[ \t]*\Z")
_LABEL = re.compile(r"(?P<label>[^\s:.,;!?|](?:[^:.;!?|\n]{0,48}[^\s:.;!?|])?):(?=\s)")
_NAME = re.compile(r"(?:[A-Z][\w'-]*[ \t]+)+(?=[a-z])")
_FENCE = re.compile(r"(`{3,}|~{3,})")
_BAR = re.compile(r"\|[ \t]*")
_NOT_IN_TOPIC = re.compile(r"[\"<>&*_#|`]+")
_CONCLUSION = re.compile(
    r"(?:\*\*|__)?(?:Overall|In (?:all|total|summary|short|conclusion|the end)|(?:Al)?together"
    r"|To (?:sum up|conclude)|Finally|Taken together|All in all)\b"
)


class Layout(Enum):
    """How a part of a text is set apart."""

    ITEM = "list item"
    SECTION = "section under a heading"
    BOLD = "line with a bold lead"
    ROW = "table row"
    LINE = "line"


_MARKS = {Layout.ITEM: _ITEM, Layout.SECTION: _HEADING, Layout.ROW: _BAR}


@dataclass(frozen=True, slots=True)
class Part:
    """Lines that belong together.

    Attributes:
        before: The white space in front of it.
        text: Its lines, without white space at the ends.
        layout: How it is set apart.
    """

    before: str
    text: str
    layout: Layout

    @property
    def body_start(self) -> int:
        """Return where the text after its mark begins: a number, the signs of a heading, a bar."""
        mark = _MARKS.get(self.layout)
        match = None if mark is None else mark.match(self.text)
        return match.end() if match else 0

    @property
    def lead(self) -> str:
        """Return its first words: bold words, a cell, a label, a heading or a name."""
        body = self.text[self.body_start :].split("\n", 1)[0]
        bold, label = _BOLD.match(body), _LABEL.match(body)
        if bold is not None:
            return bold[2].strip().rstrip(":")
        if self.layout is Layout.ROW:
            return body.split("|", 1)[0].strip()
        if label is not None or self.layout is Layout.SECTION:
            return label["label"] if label else body
        name = _NAME.match(body)
        return name[0] if name else body

    @property
    def label_end(self) -> int | None:
        """Return where its label ends: the heading, the first cell, the bold words or a colon.

        None: it has no label.
        """
        first = self.text.split("\n", 1)[0]
        if self.layout is Layout.SECTION:
            return len(first)
        if self.layout is Layout.ROW:
            return first.index("|", 1) + 1
        label = (_BOLD_LABEL if self.layout is Layout.BOLD else _LABEL).match(
            first, self.body_start
        )
        return None if label is None else label.end()

    @property
    def topic(self) -> str:
        """Return its lead, shortened to a valid topic; empty if no word is left."""
        words = _NOT_IN_TOPIC.sub(" ", self.lead).split()[:MAX_TOPIC_WORDS]
        return " ".join(words)[:MAX_TOPIC_CHARACTERS].rstrip(" .,;:!?")

    @property
    def is_conclusion(self) -> bool:
        """Return whether its first words announce a summary, such as "Overall"."""
        return _CONCLUSION.match(self.text[self.body_start :]) is not None

    @property
    def num_words(self) -> int:
        """Return the number of its words."""
        return len(self.text.split())


def parts(text: str) -> list[Part]:
    """Return the parts of a text in order.

    A section ends at the next heading of its level or a higher one, a list item at the next line
    that is not indented below it. The head of a table is a line, not a row. So is fenced code,
    whatever its lines look like.
    """
    split: list[Part] = []
    place, lines = 0, _lines(text)
    while lines:
        layout, num_lines = _first(lines)
        start, end = lines[0].start, lines[num_lines - 1].end
        split.append(Part(text[place:start], text[start:end], layout))
        place, lines = end, lines[num_lines:]
    return split


def rest(text: str, split: Sequence[Part]) -> str:
    """Return the white space after the last part."""
    return text[sum(len(part.before) + len(part.text) for part in split) :]


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    end: int
    indent: int
    text: str


def _lines(text: str) -> list[_Line]:
    """Return the lines that are not blank, without white space at their ends."""
    lines: list[_Line] = []
    place, fence = 0, ""
    for line in text.split("\n"):
        stripped = line.strip()
        mark = _FENCE.match(stripped)
        if fence:
            last = lines.pop()
            end = place + len(line.rstrip()) if stripped else last.end
            lines.append(replace(last, end=end, text=text[last.start : end]))
            fence = "" if mark and mark[1].startswith(fence) else fence
        elif stripped:
            fence = mark[1] if mark else ""
            indent = len(line) - len(line.lstrip())
            start = place + indent
            lines.append(_Line(start, start + len(stripped), indent, stripped))
        place += len(line) + 1
    return lines


def _first(lines: Sequence[_Line]) -> tuple[Layout, int]:
    """Return the layout of the first part and its number of lines."""
    line = lines[0]
    heading = _HEADING.match(line.text)
    if heading is not None:
        return Layout.SECTION, _section_size(lines, len(heading[1]))
    if _ITEM.match(line.text):
        return Layout.ITEM, _item_size(lines)
    if _ROW.match(line.text):
        has_head = len(lines) > 1 and _RULE.match(lines[1].text) is not None
        return (Layout.LINE, 2) if has_head else (Layout.ROW, 1)
    return (Layout.BOLD if _BOLD.match(line.text) else Layout.LINE), 1


def _section_size(lines: Sequence[_Line], level: int) -> int:
    for index, line in enumerate(lines[1:], start=1):
        heading = _HEADING.match(line.text)
        if heading is not None and len(heading[1]) <= level:
            return index
    return len(lines)


def _item_size(lines: Sequence[_Line]) -> int:
    """Count an item's lines: those below it that are indented more than its own mark."""
    for index, line in enumerate(lines[1:], start=1):
        if line.indent <= lines[0].indent:
            return index
    return len(lines)
