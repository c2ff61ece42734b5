"""Annotate an answer by numbers: cut it into units, and build the document of marked units.

The text is never copied by an annotator, so it cannot change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pasta_lm.errors import InputError
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.learn.annotate.filters import BlockBounds, Rejection, examine

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


class Unit(NamedTuple):
    """A stretch of an answer in characters; a block begins behind the list marker and label."""

    begin: int
    inside: int
    """The end of the marker and label, where a block begins."""
    end: int


class Marks(NamedTuple):
    """The blocks and syncs of an answer; units count from 1."""

    blocks: tuple[tuple[int, int, str], ...] = ()
    """First and last unit of each block, and its topic."""
    syncs: tuple[int, ...] = ()
    """Units before which a sync stands."""


def units(text: str) -> list[Unit]:
    """Cut an answer into its units: sentences, and paragraphs of code; white space is in none.

    List markers, heading signs and leading labels (``**Title:**``) stay outside a unit's inside.
    """
    return list(_units(text))


def marked(text: str, marks: Marks, bounds: BlockBounds | None = None) -> Document:
    """Return the answer with the marked blocks and syncs; the blocks have no length yet.

    Spaces before a tag stand behind it (``Document.with_spaces_after_tags``).

    Raises:
        InputError: a mark names no unit or overlaps another, or ``filters.examine`` rejects the
            annotation.
    """
    places = units(text)
    _check_order(marks, len(places))
    document = Document(tuple(_items(text, places, marks)))
    result = examine(document.annotator_form(), text, bounds)
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


def _items(text: str, places: Sequence[Unit], marks: Marks) -> Iterator[Item]:
    """Yield text, blocks and syncs in order."""
    cuts: list[tuple[int, int, Block | Sync]] = []
    for first, last, topic in marks.blocks:
        begin, end = places[first - 1].inside, places[last - 1].end
        cuts.append((begin, end, Block(topic, None, (Text(text[begin:end]),))))
    for unit in marks.syncs:
        at = places[unit - 1].begin
        cuts.append((at, at, Sync()))
    done = 0
    for begin, end, item in sorted(cuts, key=lambda cut: cut[:2]):
        yield Text(text[done:begin])
        yield item
        done = end
    yield Text(text[done:])


def _units(text: str) -> Iterator[Unit]:
    in_code, at, code_end = False, 0, 0
    code_begin: int | None = None
    for line in text.splitlines(keepends=True):
        begin, end = at + len(line) - len(line.lstrip()), at + len(line.rstrip())
        at += len(line)
        is_fence = _FENCE.match(line) is not None
        if code_begin is not None and (is_fence or begin >= end):
            yield Unit(code_begin, code_begin, code_end)
            code_begin = None
        if is_fence:
            in_code = not in_code
        if begin >= end:
            continue
        if is_fence:
            yield Unit(begin, begin, end)
        elif in_code:
            code_begin, code_end = begin if code_begin is None else code_begin, end
        else:
            yield from _sentences(text, begin, end)
    if code_begin is not None:
        yield Unit(code_begin, code_begin, code_end)


def _sentences(text: str, begin: int, end: int) -> Iterator[Unit]:
    """Yield the sentences of a line; the first has the line's marker and label."""
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
