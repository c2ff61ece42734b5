"""The Markdown rule: blocks and syncs from an answer's layout and its question.

Its patterns and points were chosen on the rows of ``corpora/starter`` that have no second
annotation.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import NamedTuple

from pasta_lm.errors import InputError
from pasta_lm.language.document import Document
from pasta_lm.language.events import Text
from pasta_lm.language.tags import MAX_TOPIC_CHARACTERS, MAX_TOPIC_WORDS
from pasta_lm.learn.annotate.filters import Marks, Unit, marked, units
from pasta_lm.learn.data.layout import MIN_BLOCK_WORDS, MIN_BLOCKS, Layout, parts

MAX_HEADING_WORDS = 12
SYNC_POINTS = 5.5  # A closing text with more points than this needs the blocks before it.
CONCLUSION_POINTS = 9.0
"""The last of several pieces with more points than this is a closing text and no block."""

_WORDS: Mapping[str, Sequence[str]] = tomllib.loads(
    (files("pasta_lm.learn.annotate") / "layout_words.toml").read_text("utf-8")
)


def _any_of(name: str, before: str = r"\b", after: str = r"\b") -> re.Pattern[str]:
    return re.compile(f"{before}(?:{'|'.join(_WORDS[name])}){after}", re.I)


_BEGINS = r"\W*"
_TIME = _any_of("time", _BEGINS)
_ORDER = _any_of("order")
_DATED = _any_of("time", r"\(")
_LETTER = re.compile(r"^(?:dear|hi|hello|subject|to whom)\b", re.I | re.M)
_INDEPENDENT = _any_of("independent")
_FOR = re.compile(r"(?:for|with) (?!example|instance|this|that|these|those)", re.I)
_SERIES = _any_of("series", "", "")
_CLOSING = _any_of("closing", _BEGINS)
_THEN = _any_of("then")
_RESULT = _any_of("result", "", "")
_ANAPHOR = _any_of("anaphor", _BEGINS)
_GENERIC = _any_of("generic", "", "")
_STOP_WORDS = frozenset(_WORDS["stop_words"])

_HEADING = re.compile(r"#{1,6}\s|(\*\*|__|\*)[^*\n]+\1:?\Z")
_STOPS = re.compile(r"[.!?,;][\"'”’)*_`]*\Z")
_MARKER = re.compile(r"\W*(?:\d{1,3}[.)])?\W*")
_LEAD = re.compile(r"\W{0,3}(?:\d{1,3}[.)]\s+)?(?:An?\s|The\s)?(\*{1,2}|__?)[^*_\n]{2,}\1", re.I)
_NUMBERED_QUESTION = re.compile(r"(?:^|[\s(])\d[.)]\s")
_SUM = re.compile(r"[=÷×]|\b(?:how (?:long|many|much|do i)|estimate)\b", re.I)
_LABELLED = re.compile(r"(?:\*\*|__)[^*\n]+(?:\*\*|__)|[A-Z][\w ]{2,25}:")
_WORD = re.compile(r"[A-Za-z][\w'+-]*|\d[\d.,:]*")
_NUMBER = re.compile(r"\d[\d.,]*\d|\d")
_ARTICLE = re.compile(r"(?:an?|the|for|with|in|on|to|of|as)\s+(?=\S)", re.I)
_NOT_IN_TOPIC = re.compile(r"[\"<>&*_#|`\[\]]+")


class AnswerPiece(NamedTuple):
    """A part of an answer that its layout sets apart."""

    first: int  # Its first and last unit, counted from 1.
    last: int
    kind: str
    lead: str  # Its label, or its first words.
    label: str  # Without the marker; empty if it has none.
    body: str  # Without marker and label.
    line: str  # With both.
    before: str  # The answer in front of it.
    after: str

    @property
    def num_words(self) -> int:
        return len(self.body.split())


def _piece(
    text: str, places: Sequence[Unit], first: int, last: int, *, kind: str, lead: str
) -> AnswerPiece:
    begin, inside, _ = places[first - 1]
    end = places[last - 1].end
    return AnswerPiece(
        first,
        last,
        kind,
        lead,
        label=_MARKER.sub("", text[begin:inside], count=1),
        body=text[inside:end],
        line=text[begin:end],
        before=text[:begin],
        after=text[end:].strip(),
    )


def _pieces(text: str, places: Sequence[Unit]) -> Iterator[AnswerPiece]:
    place = 0
    for part in parts(text):
        begin = place + len(part.before)
        end = place = begin + len(part.text)
        inside = [n for n, unit in enumerate(places, 1) if begin <= unit.begin and unit.end <= end]
        if inside:
            has_label = places[inside[0] - 1].inside > begin
            kind = _kind(part.text, part.layout, has_label)
            lead = part.text.split("\n")[1] if kind == "code" else part.lead
            yield _piece(text, places, inside[0], inside[-1], kind=kind, lead=lead)


def _kind(text: str, layout: Layout, has_label: bool) -> str:
    if text.startswith(("```", "~~~")) and "\n" in text:
        return "code"
    if layout is Layout.ITEM:
        return "number" if text[0].isdigit() else "bullet"
    if layout in (Layout.LINE, Layout.BOLD) and "\n" not in text:
        num_words = len(text.split())
        is_heading = bool(_HEADING.match(text)) and num_words <= MAX_HEADING_WORDS
        if is_heading or (num_words < MIN_BLOCK_WORDS and not _STOPS.search(text)):
            return "heading"
    if layout is Layout.LINE:
        return "label" if has_label else "line"
    return layout.name.lower()


def groups(text: str) -> Iterator[list[AnswerPiece]]:
    """Yield pieces of one kind that may be blocks together, those set apart most clearly first."""
    places = units(text)
    pieces = list(_pieces(text, places))
    sections = list(_sections(text, places, pieces))
    items = [piece for piece in pieces if piece.kind == "bullet"]
    has_long_items = sum(piece.num_words for piece in items) > 2 * MIN_BLOCK_WORDS * len(items) > 0
    if len(sections) >= MIN_BLOCKS and not (has_long_items and len(items) > len(sections)):
        yield sections
    for kind in ("row", "bullet", "bold", "label", "number", "code", "line"):
        members = [
            piece
            for piece in pieces
            if piece.kind == kind
            and not (kind == "bold" and len(piece.lead) == 1)  # a letter of an acrostic
            and not piece.line.endswith(":")
            and piece.num_words >= MIN_BLOCK_WORDS
        ]
        if len(members) >= MIN_BLOCKS:
            yield members


def _sections(
    text: str, places: Sequence[Unit], pieces: Sequence[AnswerPiece]
) -> Iterator[AnswerPiece]:
    """Yield the section below each heading; the last one is no longer than the others."""
    marked_up = [piece for piece in pieces if piece.kind == "section"]
    if marked_up:
        for piece in marked_up:
            first, last = piece.first + 1, piece.last
            if first <= last:
                yield _piece(text, places, first, last, kind="section", lead=piece.lead)
        return
    kinds = [*(piece.kind for piece in pieces), "heading"]
    heads = [i for i, pair in enumerate(pairwise(kinds)) if pair[0] == "heading" != pair[1]]
    sizes = [end - begin - 1 for begin, end in pairwise(heads)]
    if sizes:
        for head, size in zip(heads, [*sizes, max(sizes)], strict=True):
            body = pieces[head + 1 : head + 1 + size]
            if sum(piece.num_words for piece in body) >= MIN_BLOCK_WORDS:
                first, last, lead = body[0].first, body[-1].last, pieces[head].lead
                yield _piece(text, places, first, last, kind="section", lead=lead)


def _marks(pieces: Sequence[AnswerPiece], *, has_sync: bool) -> Marks:
    blocks = tuple((piece.first, piece.last, topic(piece.lead)) for piece in pieces)
    return Marks(blocks, (pieces[-1].last + 1,) if has_sync else ())


def topic(lead: str) -> str:
    """Return a valid topic made of the first words of a lead."""
    words = _NOT_IN_TOPIC.sub(" ", _ARTICLE.sub("", lead.strip(), count=1)).split()
    short = " ".join(words[:MAX_TOPIC_WORDS])[:MAX_TOPIC_CHARACTERS].strip(" .,;:!?-()")
    return short or "part"


def markdown_rule(prompt: str, text: str) -> Document:
    """Annotate an answer by its layout and its question, without a model."""
    try:
        return marked(text, _rule_marks(prompt, text))
    except InputError:
        return Document((Text(text),))


def _rule_marks(prompt: str, text: str) -> Marks:
    blocks = next(groups(text), [])
    kind = blocks[0].kind if blocks else ""
    if kind in _FORKS:
        blocks = _FORKS[kind](prompt, text, blocks)
    if kind in MAY_CONCLUDE:
        blocks = _without_closing(prompt, blocks)
    if len(blocks) < MIN_BLOCKS:
        return Marks()
    closing = blocks[-1].after
    is_needed = bool(closing) and sync_points(prompt, blocks, closing) > SYNC_POINTS
    return _marks(blocks, has_sync=is_needed)


def _numbers(prompt: str, text: str, pieces: list[AnswerPiece]) -> list[AnswerPiece]:
    """Return numbered items unless they look like steps in order."""
    heads = [piece.label or piece.body for piece in pieces]
    is_dated = _share(_TIME.match, heads) > 0.4 or _DATED.search(pieces[0].line)
    if is_dated or _ORDER.search(pieces[0].before):
        return []
    has_labels = _share(str.strip, [piece.label for piece in pieces]) > 0.6
    if has_labels or _share(_LEAD.match, [piece.line for piece in pieces]) > 0.6:
        return [] if _ORDER.search(prompt) else pieces
    is_numbered = len(_NUMBERED_QUESTION.findall(prompt)) >= MIN_BLOCKS
    num_words = sum(piece.num_words for piece in pieces) / len(pieces)
    is_free = is_numbered or _INDEPENDENT.search(prompt) is not None
    return pieces if is_free and num_words >= 9 else []


def _lines(prompt: str, text: str, pieces: list[AnswerPiece]) -> list[AnswerPiece]:
    """Return paragraphs with parallel beginnings: emphasis, ordinals, words of the question."""
    if _LETTER.search(text):
        return []
    led = [piece for piece in pieces if _LEAD.match(piece.line)]
    if len(led) >= MIN_BLOCKS:
        return led
    alike = [piece for piece in pieces if _FOR.match(piece.body)]
    if len(alike) >= max(MIN_BLOCKS, len(pieces) - 1):
        return alike
    series = [piece for piece in pieces if _SERIES.match(piece.body)]
    if len(series) >= MIN_BLOCKS + 1 and not _ORDER.search(prompt):
        return series
    if _SUM.search(text) or _SUM.search(prompt):
        return []
    wanted, named, seen = _words(prompt), [], set[str]()
    for piece in pieces:
        first = _words(" ".join(piece.body.split()[:4]))
        if new := (first & wanted) - seen:
            named.append(piece)
            seen |= new
    is_long = sum(piece.num_words for piece in named) >= 12 * len(named)
    return named if len(named) >= max(MIN_BLOCKS, len(pieces) - 2) and is_long else []


def _codes(prompt: str, text: str, pieces: list[AnswerPiece]) -> list[AnswerPiece]:
    """Return fenced code unless text stands between it: text that explains or continues it."""
    is_apart = any(before.last + 1 < piece.first for before, piece in pairwise(pieces))
    return [] if is_apart else pieces


_FORKS: dict[str, Callable[[str, str, list[AnswerPiece]], list[AnswerPiece]]] = {
    "number": _numbers,
    "line": _lines,
    "code": _codes,
}
"""Which pieces of a group are blocks; of other kinds all are."""
MAY_CONCLUDE = ("section", "bold", "label", "code", "line")
"""Kinds of pieces of which the last one may conclude, so that it is no block."""


def _without_closing(prompt: str, pieces: list[AnswerPiece]) -> list[AnswerPiece]:
    """Return blocks without a last one that concludes: by its first words, or asked for at last."""
    if len(pieces) < MIN_BLOCKS + 1:
        return pieces
    *blocks, last = pieces
    closing = f"{last.lead}. {last.line}" if last.kind == "section" else last.line
    is_asked_for = not last.after and _THEN.search(prompt)
    is_needed = is_asked_for and sync_points(prompt, blocks, closing) > CONCLUSION_POINTS
    return blocks if is_needed or _CLOSING.match(closing) else pieces


def sync_points(prompt: str, blocks: Sequence[AnswerPiece], closing: str) -> float:
    """Return how much speaks for a sync between blocks and the text that follows them.

    Points for: its length, blocks that it shares words or numbers with, new words of theirs, a sum
    or comparison, a label, and a question that asks for something at the end.
    """
    words, known = _words(closing), _words(prompt) | _words(blocks[0].before)
    inside = [_words(block.body) for block in blocks]
    numbers = {number for block in blocks for number in _NUMBER.findall(block.body)}
    if _GENERIC.match(closing):
        return 0.0
    return (
        min(len(closing.split()) / 9, 3.5)
        + 2 * sum(bool(words & block) for block in inside) / len(blocks)
        + len((words & frozenset().union(*inside)) - known) / 4
        + 2 * bool(numbers & {*_NUMBER.findall(closing)})
        + 1.5 * bool(_RESULT.search(closing))
        + 1.5 * bool(_LABELLED.match(closing))
        + 1.5 * bool(_THEN.search(prompt))
        + 0.5 * bool(_ANAPHOR.match(closing))
    )


def _words(text: str) -> frozenset[str]:
    words = (word.lower() for word in _WORD.findall(text))
    return frozenset(w.rstrip("s") for w in words if len(w) > 2 and w not in _STOP_WORDS)


def _share(matches: Callable[[str], object], texts: Sequence[str]) -> float:
    return sum(bool(matches(text)) for text in texts) / len(texts)
