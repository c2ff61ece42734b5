"""Accept or reject an annotation; every reason for rejection has a code.

Without tags the answer must be the original, character by character; tags must be well-formed;
topics and blocks have bounds; blocks must give a speedup. Nothing is repaired: the teacher gets
the reason and tries again. ``marked`` builds an annotation from numbered units, copying no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from os.path import commonprefix
from typing import NamedTuple

from pasta_lm.engines.scripted import words
from pasta_lm.errors import InputError
from pasta_lm.interpreter.speed import document_speedup
from pasta_lm.language.check import Diagnostic, check, render
from pasta_lm.language.document import Block, Document, Item, parse
from pasta_lm.language.events import Sync, Text
from pasta_lm.language.faults import Fault
from pasta_lm.language.parser import Form

_FENCE = re.compile(r"\s*(```|~~~)")
_MARKER = re.compile(r"[ \t]*(?:(?:[-*+•–>]|#{1,6}|\d{1,3}[.)]|\(?[A-Za-z][.)])[ \t]+)*")
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
NUM_SHOWN = 40  # Characters shown where two texts differ.


class Reason(StrEnum):
    """Why an annotation is rejected."""

    TEXT_CHANGED = "text_changed"
    MALFORMED = "malformed"
    NESTED = "nested"
    TOPIC_BOUNDS = "topic_bounds"
    BLOCK_BOUNDS = "block_bounds"
    IDLE_SYNC = "idle_sync"
    NO_GAIN = "no_gain"
    REFUSED = "refused"
    CUT_OFF = "cut_off"


_REASON_OF = {
    Fault.NESTED.code: Reason.NESTED,
    Fault.BLANK_TOPIC.code: Reason.TOPIC_BOUNDS,
    Fault.WORDY_TOPIC.code: Reason.TOPIC_BOUNDS,
    Fault.LONG_TOPIC.code: Reason.TOPIC_BOUNDS,
    Fault.BLOCK_WITHOUT_TOPIC.code: Reason.TOPIC_BOUNDS,
    Fault.EMPTY_BLOCK.code: Reason.BLOCK_BOUNDS,
    Fault.IDLE_SYNC.code: Reason.IDLE_SYNC,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """Which answers are sent, and which annotations are kept."""

    least_words: int = 5  # PASTA, appendix on annotation: at least five words in a block
    """Minimum of a block."""
    most_words: int = 640  # the longest promise, in tokens
    """Maximum of a block."""
    max_answer_characters: int = 20_000
    """Longer answers are skipped: a copy of them would be cut off."""


FILTERS = FilterConfig()


class Rejection(NamedTuple):
    """Why an answer is not annotated: a code, and a message for the teacher."""

    reason: str
    message: str


def examine(annotated: str, original: str, filters: FilterConfig = FILTERS) -> Document | Rejection:
    """Return the annotated answer, or the first reason to reject it.

    ``annotated`` is a copy of ``original`` in annotator form; it may have no blocks.
    """
    # The teacher may leave spaces before tags: they move, and then count for the speedup.
    faults = check(annotated, Form.ANNOTATOR)
    faults = [fault for fault in faults if fault.code != Fault.SPACE_BEFORE_TAG.code]
    for fault in faults:
        if fault.severity == "error":
            return _reject(fault, annotated)
    document = parse(annotated, Form.ANNOTATOR).with_spaces_after_tags()
    if document.plain_text != original:
        return Rejection(Reason.TEXT_CHANGED, _difference(original, document.plain_text))
    if faults:
        return _reject(faults[0], annotated)
    for block in document.blocks:
        num_words = len(block.plain_text.split())
        if not filters.least_words <= num_words <= filters.most_words:
            return Rejection(
                Reason.BLOCK_BOUNDS,
                f"The block {block.topic!r} has {num_words} words; a block has "
                f"{filters.least_words} to {filters.most_words}. Remove its tags, or move them.",
            )
    if document.blocks and speedup(document) <= 1:
        return Rejection(
            Reason.NO_GAIN,
            "Written in parallel, this answer would take as many steps as without tags. Mark at "
            "least two longer parts that do not need one another, or return it without tags.",
        )
    return document


def speedup(document: Document) -> float:
    """Return the theoretical speedup of an answer, with words as tokens."""
    return document_speedup(document, lambda text: len(words(text)))


def _reject(fault: Diagnostic, text: str) -> Rejection:
    return Rejection(_REASON_OF.get(fault.code, Reason.MALFORMED), render(fault, text))


def _difference(original: str, copy: str) -> str:
    at = len(commonprefix([original, copy]))
    line = original.count("\n", 0, at) + 1
    shown = slice(max(0, at - NUM_SHOWN // 2), at + NUM_SHOWN)
    return (
        f"Without its tags the text is not the original; the first difference is in line {line}. "
        f"The original reads {original[shown]!r}, yours {copy[shown]!r}."
    )


class Unit(NamedTuple):
    """A stretch of an answer in characters; a block begins behind the list marker and label."""

    begin: int
    inside: int  # The end of the marker and label, where a block begins.
    end: int


class Marks(NamedTuple):
    """The blocks and syncs of an answer; units count from 1."""

    blocks: tuple[tuple[int, int, str], ...] = ()
    """First and last unit of each block, and its topic."""
    syncs: tuple[int, ...] = ()  # Units before which a sync stands.


def marked(text: str, marks: Marks, filters: FilterConfig = FILTERS) -> Document:
    """Return the answer with the marked blocks, which have no length yet, and syncs.

    An InputError says that marks name no units or overlap, or why ``examine`` rejects them.
    """
    places = units(text)
    _check_order(marks, len(places))
    result = examine(_document(text, places, marks).annotator_form(), text, filters)
    if isinstance(result, Rejection):
        raise InputError(f"{result.reason}: {result.message}")
    return result


def _check_order(marks: Marks, num_units: int) -> None:
    last_end = 0
    for first, last, topic in marks.blocks:
        if not last_end < first <= last <= num_units:
            raise InputError(
                f"block {first}-{last} ({topic}) is out of order, overlaps the one "
                f"before, or is not within the {num_units} units"
            )
        last_end = last
    for unit in marks.syncs:
        if not 1 <= unit <= num_units:
            raise InputError(f"s{unit} is not one of the {num_units} units")
        if any(first < unit <= last for first, last, _ in marks.blocks):
            raise InputError(f"s{unit} is inside a block")


def _document(text: str, places: Sequence[Unit], marks: Marks) -> Document:
    cuts: list[tuple[int, int, Block | Sync]] = []
    for first, last, topic in marks.blocks:
        begin, end = places[first - 1].inside, places[last - 1].end
        cuts.append((begin, end, Block(topic, None, (Text(text[begin:end]),))))
    for unit in marks.syncs:
        at = places[unit - 1].begin
        cuts.append((at, at, Sync()))
    items: list[Item] = []
    done = 0
    for begin, end, item in sorted(cuts, key=lambda cut: cut[:2]):
        items += Text(text[done:begin]), item
        done = end
    return Document((*items, Text(text[done:])))


def units(text: str) -> list[Unit]:
    """Cut an answer into its units: sentences, and paragraphs of code; white space is in none.

    List markers, heading signs and leading labels (``**Title:**``) stay outside a unit's inside.
    """
    cut: list[Unit] = []
    in_code = in_paragraph = False
    at = 0
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
        stop = base + match.start() + len(match.group().rstrip())
        yield Unit(begin, inside, stop)
        begin = inside = base + match.end()
    yield Unit(begin, inside, end)


def _inside(text: str, begin: int, end: int) -> int:
    line = text[begin:end]
    at = _MARKER.match(line).end()  # type: ignore[union-attr]
    label = _BOLD_LABEL.match(line, at) or _PLAIN_LABEL.match(line, at)
    if label and all(label.group().count(sign) % 2 == 0 for sign in ("**", "__", '"', "`")):
        at = label.end()
    return begin + at if at < len(line) else begin
