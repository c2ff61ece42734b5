"""The Markdown rule: propose blocks and syncs from an answer's layout and its question.

``proposals`` lists the annotations that a layout allows, for a model that chooses among them;
``markdown_rule`` chooses by itself. Its patterns and points were chosen on the rows of
``corpora/starter`` that have no second annotation.
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
from pasta_lm.learn.annotate.filters import BlockBounds, Marks, Unit, marked, units
from pasta_lm.learn.data.layout import MIN_BLOCK_WORDS, MIN_BLOCKS, Layout, parts

MAX_HEADING_WORDS = 12
SYNC_POINTS = 5.5
"""A closing text with more points than this needs the blocks before it."""
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
    """A part of an answer that its layout sets apart, in units from 1."""

    first: int
    last: int
    kind: str
    lead: str
    """Its label, or its first words."""
    num_words: int
    """Behind the marker and label."""


class Group(NamedTuple):
    """Pieces of one kind that may be blocks together."""

    kind: str
    pieces: tuple[AnswerPiece, ...]


class PlainAnswer:
    """A plain answer with its units and pieces."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.units: Sequence[Unit] = units(text)
        self.pieces = list(self._pieces())

    def line(self, piece: AnswerPiece) -> str:
        """Return a piece with its marker and label."""
        return self.text[self.units[piece.first - 1].begin : self.units[piece.last - 1].end]

    def label(self, piece: AnswerPiece) -> str:
        """Return a piece's label without its marker; empty if it has none."""
        unit = self.units[piece.first - 1]
        return _MARKER.sub("", self.text[unit.begin : unit.inside], count=1)

    def body(self, piece: AnswerPiece) -> str:
        """Return a piece without its marker and label."""
        return self.text[self.units[piece.first - 1].inside : self.units[piece.last - 1].end]

    def after(self, piece: AnswerPiece) -> str:
        return self.text[self.units[piece.last - 1].end :].strip()

    def _pieces(self) -> Iterator[AnswerPiece]:
        place = 0
        for part in parts(self.text):
            begin = place + len(part.before)
            end = place = begin + len(part.text)
            inside = [n for n, u in enumerate(self.units, 1) if begin <= u.begin and u.end <= end]
            if inside:
                body = self.text[self.units[inside[0] - 1].inside : end]
                has_label = self.units[inside[0] - 1].inside > begin
                kind = _kind(part.text, part.layout, has_label)
                lead = part.text.split("\n")[1] if kind == "code" else part.lead
                yield AnswerPiece(inside[0], inside[-1], kind, lead, len(body.split()))


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


def groups(answer: PlainAnswer) -> Iterator[Group]:
    """Yield the groups of an answer's pieces, what is set apart most clearly first."""
    sections = list(_sections(answer.pieces))
    items = [piece for piece in answer.pieces if piece.kind == "bullet"]
    has_long_items = sum(piece.num_words for piece in items) > 2 * MIN_BLOCK_WORDS * len(items) > 0
    if len(sections) >= MIN_BLOCKS and not (has_long_items and len(items) > len(sections)):
        yield Group("section", tuple(sections))
    for kind in ("row", "bullet", "bold", "label", "number", "code", "line"):
        members = [piece for piece in answer.pieces if piece.kind == kind]
        if kind == "bold":  # the letters of an acrostic are no labels
            members = [piece for piece in members if len(piece.lead) > 1]
        members = [piece for piece in members if not answer.line(piece).endswith(":")]
        members = [piece for piece in members if piece.num_words >= MIN_BLOCK_WORDS]
        if len(members) >= MIN_BLOCKS:
            yield Group(kind, tuple(members))


def _sections(pieces: Sequence[AnswerPiece]) -> Iterator[AnswerPiece]:
    """Yield the section below each heading; the last one is no longer than the others."""
    marked_up = [piece for piece in pieces if piece.kind == "section"]
    if marked_up:
        yield from (
            piece._replace(first=piece.first + 1) for piece in marked_up if piece.first < piece.last
        )
        return
    kinds = [*(piece.kind for piece in pieces), "heading"]
    heads = [i for i, pair in enumerate(pairwise(kinds)) if pair[0] == "heading" != pair[1]]
    sizes = [end - begin - 1 for begin, end in pairwise(heads)]
    if sizes:
        for head, size in zip(heads, [*sizes, max(sizes)], strict=True):
            body = pieces[head + 1 : head + 1 + size]
            num_words = sum(piece.num_words for piece in body)
            if num_words >= MIN_BLOCK_WORDS:
                lead = pieces[head].lead
                yield AnswerPiece(body[0].first, body[-1].last, "section", lead, num_words)


def proposals(text: str) -> list[Marks]:
    """Return the annotations that an answer's layout allows, the one without blocks first.

    Each group of pieces is forked as a whole, or without its first or last pieces, with a sync
    before the text after it and without.
    """
    answer = PlainAnswer(text)
    options = dict.fromkeys([Marks()])
    for group in groups(answer):
        whole, cuts = group.pieces, [group.pieces]
        if group.kind in ("bold", "label", "code", "line", "section"):
            cuts += [whole[1:], whole[:-1], whole[1:-1]]
        for pieces in (cut for cut in cuts if len(cut) >= MIN_BLOCKS):
            options[_marks(pieces, has_sync=False)] = None
            if pieces[-1].last < len(answer.units):
                options[_marks(pieces, has_sync=True)] = None
    return list(options)


def _marks(pieces: Sequence[AnswerPiece], *, has_sync: bool) -> Marks:
    blocks = tuple((piece.first, piece.last, topic(piece.lead)) for piece in pieces)
    return Marks(blocks, (pieces[-1].last + 1,) if has_sync else ())


def topic(lead: str) -> str:
    """Return a valid topic made of the first words of a lead."""
    words = _NOT_IN_TOPIC.sub(" ", _ARTICLE.sub("", lead.strip(), count=1)).split()
    short = " ".join(words[:MAX_TOPIC_WORDS])[:MAX_TOPIC_CHARACTERS].strip(" .,;:!?-()")
    return short or "part"


def document_of(text: str, marks: Marks, bounds: BlockBounds | None = None) -> Document:
    """Return the annotated answer; without tags if the filters reject the annotation."""
    try:
        return marked(text, marks, bounds)
    except InputError:
        return Document((Text(text),))


def markdown_rule(prompt: str, text: str) -> Document:
    """Annotate an answer by its layout and its question, without a model."""
    return document_of(text, rule_marks(prompt, text))


def rule_marks(prompt: str, text: str) -> Marks:
    answer = PlainAnswer(text)
    group = next(groups(answer), None)
    if group is None:
        return Marks()
    blocks = _FORKS.get(group.kind, _all)(prompt, answer, group.pieces)
    if group.kind in ("section", "bold", "label", "code", "line"):
        blocks = _without_closing(prompt, answer, blocks)
    if len(blocks) < MIN_BLOCKS:
        return Marks()
    closing = answer.after(blocks[-1])
    before = answer.text[: answer.units[blocks[0].first - 1].begin]
    points = sync_points(prompt, before, [answer.body(piece) for piece in blocks], closing)
    return _marks(blocks, has_sync=bool(closing) and points > SYNC_POINTS)


def _all(prompt: str, answer: PlainAnswer, pieces: Sequence[AnswerPiece]) -> list[AnswerPiece]:
    return list(pieces)


def _numbers(prompt: str, answer: PlainAnswer, pieces: Sequence[AnswerPiece]) -> list[AnswerPiece]:
    """Return numbered items unless they look like steps in order."""
    labels = [answer.label(piece) for piece in pieces]
    lines = [answer.line(piece) for piece in pieces]
    intro = answer.text[: answer.units[pieces[0].first - 1].begin]
    heads = [label or answer.body(piece) for label, piece in zip(labels, pieces, strict=True)]
    if _share(_TIME.match, heads) > 0.4 or _ORDER.search(intro) or _DATED.search(lines[0]):
        return []
    if _share(str.strip, labels) > 0.6 or _share(_LEAD.match, lines) > 0.6:
        return [] if _ORDER.search(prompt) else list(pieces)
    is_numbered = len(_NUMBERED_QUESTION.findall(prompt)) >= MIN_BLOCKS
    num_words = sum(piece.num_words for piece in pieces) / len(pieces)
    is_free = is_numbered or _INDEPENDENT.search(prompt) is not None
    return list(pieces) if is_free and num_words >= 9 else []


def _lines(prompt: str, answer: PlainAnswer, pieces: Sequence[AnswerPiece]) -> list[AnswerPiece]:
    """Return paragraphs with parallel beginnings: emphasis, ordinals, words of the question."""
    if _LETTER.search(answer.text):
        return []
    led = [piece for piece in pieces if _LEAD.match(answer.line(piece))]
    if len(led) >= MIN_BLOCKS:
        return led
    alike = [piece for piece in pieces if _FOR.match(answer.body(piece))]
    if len(alike) >= max(MIN_BLOCKS, len(pieces) - 1):
        return alike
    series = [piece for piece in pieces if _SERIES.match(answer.body(piece))]
    if len(series) >= MIN_BLOCKS + 1 and not _ORDER.search(prompt):
        return series
    if _SUM.search(answer.text) or _SUM.search(prompt):
        return []
    wanted, named, seen = _words(prompt), [], set[str]()
    for piece in pieces:
        first = _words(" ".join(answer.body(piece).split()[:4]))
        if new := (first & wanted) - seen:
            named.append(piece)
            seen |= new
    num_words = sum(piece.num_words for piece in named)
    is_long = num_words >= 12 * len(named)
    return named if len(named) >= max(MIN_BLOCKS, len(pieces) - 2) and is_long else []


def _codes(prompt: str, answer: PlainAnswer, pieces: Sequence[AnswerPiece]) -> list[AnswerPiece]:
    """Return fenced code unless text stands between it: text that explains or continues it."""
    inside = [
        piece for piece in answer.pieces if pieces[0].first <= piece.first <= pieces[-1].first
    ]
    return list(pieces) if len(inside) == len(pieces) else []


_FORKS: dict[str, Callable[[str, PlainAnswer, Sequence[AnswerPiece]], list[AnswerPiece]]] = {
    "number": _numbers,
    "line": _lines,
    "code": _codes,
}
"""Which pieces of a group are blocks; of other kinds all are."""


def _without_closing(
    prompt: str, answer: PlainAnswer, pieces: list[AnswerPiece]
) -> list[AnswerPiece]:
    """Return blocks without a last one that concludes: by its first words, or asked for at last."""
    if len(pieces) < MIN_BLOCKS + 1:
        return pieces
    last = answer.line(pieces[-1])
    if pieces[-1].kind == "section":
        last = f"{pieces[-1].lead}. {last}"
    before = answer.text[: answer.units[pieces[0].first - 1].begin]
    points = sync_points(prompt, before, [answer.body(piece) for piece in pieces[:-1]], last)
    is_last = not answer.after(pieces[-1])
    is_needed = is_last and bool(_THEN.search(prompt)) and points > CONCLUSION_POINTS
    return pieces[:-1] if is_needed or _CLOSING.match(last) else pieces


def sync_points(prompt: str, intro: str, blocks: Sequence[str], closing: str) -> float:
    """Return how much speaks for a sync between blocks and the text that follows them.

    Points for: its length, blocks that it shares words or numbers with, new words of theirs, a sum
    or comparison, a label, and a question that asks for something at the end.
    """
    words, known = _words(closing), _words(prompt) | _words(intro)
    inside = [_words(block) for block in blocks]
    numbers = {number for block in blocks for number in _NUMBER.findall(block)}
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
