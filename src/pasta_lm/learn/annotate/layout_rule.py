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

from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.tags import MAX_TOPIC_CHARACTERS, MAX_TOPIC_WORDS
from pasta_lm.learn.annotate.filters import FILTERS, FilterConfig, examine
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

_FENCE = re.compile(r"\s*(```|~~~)")
_LIST_MARKER = re.compile(r"[ \t]*(?:(?:[-*+•–>]|#{1,6}|\d{1,3}[.)]|\(?[A-Za-z][.)])[ \t]+)*")
_BOLD_LABEL = re.compile(
    r"(\*\*|__)[^*\n]{1,80}?(?::\1|\1[ \t]*(?::|[-–—](?=[ \t]))):?[ \t]+(?=\S)"
)
_PLAIN_LABEL = re.compile(
    r"[\"'*_`]{0,2}\w[^\s:.!?]*(?:[ \t][^\s:.!?]+){0,5}:[*_]{0,2}[ \t]+(?=\S)"
)
_SENTENCE_END = re.compile(
    r"(?<!\b[A-Z]\.)(?<!\b(?:Mr|Dr|Ms|St|vs)\.)(?<!\b(?:Mrs|e\.g|i\.e|etc)\.)(?<!^\d\.)(?<!\d\d\.)"
    r"(?<=[.!?])[\"'”’)\]*_]*[ \t]+(?=[\"'“‘(\[*_]*[A-Z0-9])"
)
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


class Unit(NamedTuple):
    """A stretch of an answer in characters; a block begins behind the list marker and label."""

    begin: int
    inside: int  # The end of the marker and label, where a block begins.
    end: int


class AnswerPiece(NamedTuple):
    """A part of an answer that its layout sets apart."""

    units: Sequence[Unit]
    kind: str
    lead: str  # Its label, or its first words.
    before: str  # The answer in front of it.
    head: str  # Its marker and label.
    body: str  # Without them.
    after: str

    @property
    def line(self) -> str:
        return self.head + self.body

    @property
    def num_words(self) -> int:
        return len(self.body.split())


def _piece(text: str, stretches: Sequence[Unit], kind: str, lead: str) -> AnswerPiece:
    (begin, inside, _), end = stretches[0], stretches[-1].end
    cuts = text[:begin], text[begin:inside], text[inside:end], text[end:].strip()
    return AnswerPiece(stretches, kind, lead, *cuts)


def _pieces(text: str) -> Iterator[AnswerPiece]:
    stretches, at = units(text), 0
    for part in parts(text):
        begin = at + len(part.before)
        end = at = begin + len(part.text)
        if inside := [unit for unit in stretches if begin <= unit.begin and unit.end <= end]:
            kind = _kind(part.text, part.layout, inside[0].inside > begin)
            lead = part.text.split("\n")[1] if kind == "code" else part.lead
            yield _piece(text, inside, kind, lead)


def _kind(text: str, layout: Layout, has_label: bool) -> str:
    if text.startswith(("```", "~~~")) and "\n" in text:
        return "code"
    if layout == "item":
        return "number" if text[0].isdigit() else "bullet"
    if layout in ("line", "bold") and "\n" not in text:
        num_words = len(text.split())
        is_heading = bool(_HEADING.match(text)) and num_words <= MAX_HEADING_WORDS
        if is_heading or (num_words < MIN_BLOCK_WORDS and not _STOPS.search(text)):
            return "heading"
    return "label" if layout == "line" and has_label else layout


def _group(text: str) -> list[AnswerPiece]:
    """Return the pieces of one kind that may be blocks together, those set apart most clearly."""
    pieces = list(_pieces(text))
    sections = list(_sections(text, pieces))
    items = [piece for piece in pieces if piece.kind == "bullet"]
    has_long_items = sum(piece.num_words for piece in items) > 2 * MIN_BLOCK_WORDS * len(items) > 0
    if len(sections) >= MIN_BLOCKS and not (has_long_items and len(items) > len(sections)):
        return sections
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
            return members
    return []


def _sections(text: str, pieces: Sequence[AnswerPiece]) -> Iterator[AnswerPiece]:
    """Yield the section below each heading; the last one is no longer than the others."""
    if marked_up := [piece for piece in pieces if piece.kind == "section"]:
        bodies = ((piece.units[1:], piece.lead) for piece in marked_up)
        yield from (_piece(text, body, "section", lead) for body, lead in bodies if body)
        return
    kinds = [*(piece.kind for piece in pieces), "heading"]
    heads = [i for i, pair in enumerate(pairwise(kinds)) if pair[0] == "heading" != pair[1]]
    sizes = [end - begin - 1 for begin, end in pairwise(heads)]
    for head, size in zip(heads, [*sizes, max(sizes, default=0)], strict=False):
        body = pieces[head + 1 : head + 1 + size]
        if sum(piece.num_words for piece in body) >= MIN_BLOCK_WORDS:
            stretches = [unit for piece in body for unit in piece.units]
            yield _piece(text, stretches, "section", pieces[head].lead)


def topic(lead: str) -> str:
    words = _NOT_IN_TOPIC.sub(" ", _ARTICLE.sub("", lead.strip(), count=1)).split()
    short = " ".join(words[:MAX_TOPIC_WORDS])[:MAX_TOPIC_CHARACTERS].strip(" .,;:!?-()")
    return short or "part"


def markdown_rule(prompt: str, text: str, filters: FilterConfig = FILTERS) -> Document:
    """Annotate an answer by its layout and its question; without tags if that is rejected."""
    blocks = _group(text)
    kind = blocks[0].kind if blocks else ""
    if kind in _FORKS:
        blocks = _FORKS[kind](prompt, text, blocks)
    if kind in ("section", "bold", "label", "code", "line"):  # the last one may conclude
        blocks = _without_closing(prompt, blocks)
    items, done = list[Item](), 0
    for piece in blocks if len(blocks) >= MIN_BLOCKS else ():
        block = Block(topic(piece.lead), None, (Text(piece.body),))
        items += Text(text[done : piece.units[0].inside]), block
        done = piece.units[-1].end
    closing = blocks[-1].after if items else ""
    if closing and sync_points(prompt, blocks, closing) > SYNC_POINTS:
        begin = len(text) - len(text[done:].lstrip())
        items += Text(text[done:begin]), Sync()
        done = begin
    document = Document((*items, Text(text[done:])))
    kept = examine(document.annotator_form(), text, filters)
    return kept if isinstance(kept, Document) else Document((Text(text),))


def _numbers(prompt: str, text: str, pieces: list[AnswerPiece]) -> list[AnswerPiece]:
    """Return numbered items unless they look like steps in order."""
    labels = [_MARKER.sub("", piece.head, count=1) for piece in pieces]
    heads = [label or piece.body for label, piece in zip(labels, pieces, strict=True)]
    is_dated = _share(_TIME.match, heads) > 0.4 or _DATED.search(pieces[0].line)
    if is_dated or _ORDER.search(pieces[0].before):
        return []
    has_labels = _share(str.strip, labels) > 0.6
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
    topics, named, seen = _words(prompt), [], set[str]()
    for piece in pieces:
        if new := (_words(" ".join(piece.body.split()[:4])) & topics) - seen:
            named.append(piece)
            seen |= new
    is_long = sum(piece.num_words for piece in named) >= 12 * len(named)
    return named if len(named) >= max(MIN_BLOCKS, len(pieces) - 2) and is_long else []


def _codes(prompt: str, text: str, pieces: list[AnswerPiece]) -> list[AnswerPiece]:
    """Return fenced code unless text stands between it: text that explains or continues it."""
    between = [
        text[first.units[-1].end : second.units[0].begin] for first, second in pairwise(pieces)
    ]
    return [] if any(map(str.strip, between)) else pieces


_FORKS = {"number": _numbers, "line": _lines, "code": _codes}
"""Which pieces of a group are blocks; of other kinds all are."""


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
    """Score the evidence for a sync between blocks and the text that follows them.

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


def units(text: str) -> list[Unit]:
    """Cut an answer into its units: sentences, and paragraphs of code; white space is in none.

    List markers, heading signs and leading labels (``**Title:**``) stay outside a unit's inside.
    """
    cut, at = list[Unit](), 0
    in_code = in_paragraph = False
    for line in text.splitlines(keepends=True):
        begin, end = at + len(line) - len(line.lstrip()), at + len(line.rstrip())
        at += len(line)
        if _FENCE.match(line):
            cut.append(Unit(begin, begin, end))
            in_code, in_paragraph = not in_code, False
        elif begin >= end:
            in_paragraph = False
        elif not in_code:
            cut += _sentences(text, begin, end)
        elif in_paragraph:
            cut[-1] = cut[-1]._replace(end=end)
        else:
            cut.append(Unit(begin, begin, end))
            in_paragraph = True
    return cut


def _sentences(text: str, begin: int, end: int) -> Iterator[Unit]:
    inside = base = _inside(text, begin, end)
    for match in _SENTENCE_END.finditer(text[base:end]):
        yield Unit(begin, inside, base + match.start() + len(match.group().rstrip()))
        begin = inside = base + match.end()
    yield Unit(begin, inside, end)


def _inside(text: str, begin: int, end: int) -> int:
    line = text[begin:end]
    at = _LIST_MARKER.match(line).end()  # type: ignore[union-attr]
    label = _BOLD_LABEL.match(line, at) or _PLAIN_LABEL.match(line, at)
    if label and all(label.group().count(sign) % 2 == 0 for sign in ("**", "__", '"', "`")):
        at = label.end()
    return begin + at if at < len(line) else begin
