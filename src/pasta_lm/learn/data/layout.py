"""Split a plain answer by its layout: list items, sections, bold leads, table rows, lines.

Also the baselines' rules, which rewrite an annotated answer: APAR's fork the details of what the
layout sets apart, Skeleton-of-Thought's make points of the blocks.

Source: Liu et al. 2024 (APAR), arXiv 2401.06761, section 3.1 and its published data scripts;
Ning et al. 2024 (Skeleton-of-Thought), arXiv 2307.15337, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Text
from pasta_lm.language.parser import FORK_TOPIC

MIN_BLOCK_WORDS = 5  # The paper's annotator has the same bound (PASTA, appendix on annotation).
MIN_BLOCKS = 2  # A single block runs beside nothing.
MIN_FORKS, MIN_DETAIL_CHARACTERS = 3, 10
"""Shorter details are not forked, and answers with fewer forks stay whole (APAR's scripts)."""
CODE_MARKS = ("```", "$$", "<", ">", "=", "---", "http")
"""Answers with one of these are code or mathematics and stay whole (APAR's scripts)."""

_ORDINALS = "First|Second|Third|Fourth|Fifth|Sixth|Seventh|Eighth|Ninth|Tenth|Firstly|Secondly"
_ITEM = re.compile(rf"(?:[-*+]|\d{{1,3}}[.)])[ \t]+|(?:{_ORDINALS}|Thirdly),[ \t]+")
_HEADING = re.compile(r"(#{1,6})[ \t]+")
_BOLD = re.compile(r"(\*\*|__)(?=\S)(.+?)\1")
_ROW = re.compile(r"\|.*\|[ \t]*\Z")
_RULE = re.compile(r"\|?[ \t:|-]*-[ \t:|-]*\|?[ \t]*\Z")
_LABEL = re.compile(r"(?P<label>[^\s:.,;!?|](?:[^:.;!?|\n]{0,48}[^\s:.;!?|])?):(?=\s)")
_NAME = re.compile(r"(?:[A-Z][\w'-]*[ \t]+)+(?=[a-z])")
_NUMBERED, _SENTENCE_END = re.compile(r"\d+\.\s"), re.compile(r"[.!?](?=\s)")
_FENCE = re.compile(r"(`{3,}|~{3,})")
_BAR = re.compile(r"\|[ \t]*")
_CONCLUSION = re.compile(
    r"(?:\*\*|__)?(?:Overall|In (?:all|total|summary|short|conclusion|the end)|(?:Al)?together"
    r"|To (?:sum up|conclude)|Finally|Taken together|All in all)\b"
)

Layout = Literal["item", "section", "bold", "row", "line"]
"""How a part of a text is set apart: a section has a heading, a bold line a bold lead."""
_MARKS: dict[str, re.Pattern[str]] = {"item": _ITEM, "section": _HEADING, "row": _BAR}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Lines that belong together, and the white space before; the text has none at its ends."""

    before: str
    text: str
    layout: Layout

    @property
    def body_start(self) -> int:
        """Return the offset of the text behind its mark: a number, signs of a heading, a bar."""
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
        if self.layout == "row":
            return body.split("|", 1)[0].strip()
        if label is not None or self.layout == "section":
            return label["label"] if label else body
        name = _NAME.match(body)
        return name[0] if name else body


def parts(text: str) -> list[Stretch]:
    """Return the parts of a text in order.

    A section ends at the next heading of its level or a higher one, a list item at the next line
    that is not indented below it. The head of a table is a line, not a row. So is fenced code,
    whatever its lines look like.
    """
    split, offset, lines = list[Stretch](), 0, _lines(text)
    while lines:
        layout, num_lines = _first(lines)
        start, end = lines[0].start, lines[num_lines - 1].end
        split.append(Stretch(text[offset:start], text[start:end], layout))
        offset, lines = end, lines[num_lines:]
    return split


class _Line(NamedTuple):
    start: int
    end: int
    indent: int
    text: str


def _lines(text: str) -> list[_Line]:
    """Return the lines that are not blank, without space at their ends; fenced code is one."""
    lines, offset, fence = list[_Line](), 0, ""
    for line in text.split("\n"):
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        mark = _FENCE.match(stripped)
        start, end = offset + indent, offset + len(line.rstrip())
        if stripped and fence:
            first = lines[-1]
            lines[-1] = first._replace(end=end, text=text[first.start : end])
            fence = "" if mark and mark[1].startswith(fence) else fence
        elif stripped:
            lines.append(_Line(start, end, indent, stripped))
            fence = mark[1] if mark else ""
        offset += len(line) + 1
    return lines


def _first(lines: Sequence[_Line]) -> tuple[Layout, int]:
    line, others = lines[0], lines[1:]
    if heading := _HEADING.match(line.text):
        level = len(heading[1])
        marks = [_HEADING.match(other.text) for other in others]
        ends = (n for n, mark in enumerate(marks, 1) if mark and len(mark[1]) <= level)
        return "section", next(ends, len(lines))
    if _ITEM.match(line.text):
        ends = (n for n, other in enumerate(others, 1) if other.indent <= line.indent)
        return "item", next(ends, len(lines))
    if _ROW.match(line.text):
        has_head = bool(others) and _RULE.match(others[0].text) is not None
        return ("line", 2) if has_head else ("row", 1)
    return ("bold" if _BOLD.match(line.text) else "line"), 1


def apar_document(text: str) -> Document:
    """Return a plain answer as APAR learns it: details of its labelled items forked.

    Without such items the details are what follows the first sentence of each paragraph.
    """
    whole = Document((Text(text),))
    if any(mark in text for mark in CODE_MARKS):
        return whole
    items = [item for part in parts(text) for item in (Text(part.before), *_labelled(part))]
    forked = Document((*items, Text(text[len(text.rstrip()) :])))
    if len(forked.blocks) >= MIN_FORKS:
        return forked
    pieces = re.split(r"(\n\n+)", text)
    if len(pieces) <= 2 * (MIN_FORKS - 1):
        return whole
    by_paragraph = Document(tuple(item for piece in pieces for item in _first_sentence(piece)))
    return by_paragraph if len(by_paragraph.blocks) >= MIN_FORKS else whole


def _labelled(part: Stretch) -> list[Item]:
    label = _LABEL.match(part.text.split("\n", 1)[0], part.body_start)
    is_conclusion = _CONCLUSION.match(part.text[part.body_start :])
    if label is None or is_conclusion or not _NUMBERED.match(part.text):
        return [Text(part.text)]
    return _lead_and_detail(part.text, label.end())


def _first_sentence(paragraph: str) -> list[Item]:
    sentence = _SENTENCE_END.search(paragraph)
    if sentence is None or _CONCLUSION.match(paragraph):
        return [Text(paragraph)]
    return _lead_and_detail(paragraph, sentence.end())


def _lead_and_detail(text: str, end: int) -> list[Item]:
    if len(text[end:].strip()) < MIN_DETAIL_CHARACTERS:
        return [Text(text)]
    return [Text(text[:end]), Block(FORK_TOPIC, None, (Text(text[end:]),))]


def points_of(document: Document) -> Document:
    """Return an annotated answer by points: its blocks, each with the text in front of it.

    An answer with a sync or with fewer than two blocks is a single point, which has no skeleton: so
    the model learns to route by itself.
    """
    if len(document.blocks) < 2 or document.num_syncs:
        return Document((Block(FORK_TOPIC, None, (Text(document.plain_text),)),))
    points, before = list[Block](), ""
    for item in document.items:
        if isinstance(item, Block):
            points.append(Block(item.topic, None, (Text(before + item.plain_text),)))
            before = ""
        elif isinstance(item, Text):
            before += item.text
    last = points.pop()
    return Document((*points, Block(last.topic, None, (Text(last.plain_text + before),))))


RULES: dict[str, Callable[[Document], Document]] = {
    "apar": lambda document: apar_document(document.plain_text),
    "sot": points_of,
}
"""How baselines learn annotated answers, by name: APAR from plain text, SoT from the blocks."""
