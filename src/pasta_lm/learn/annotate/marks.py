"""Annotate an answer by numbers: cut it into units, read a reader's marks, build the document.

A reader (a person or a large language model) sees the units of an answer with their numbers and
names the ones that make a block. The text is never copied, so it cannot change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pasta_lm.errors import InputError
from pasta_lm.language.document import Block, Document, Item
from pasta_lm.language.events import Sync, Text
from pasta_lm.learn.annotate.filters import Bounds, Rejection, examine

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

_LINE = re.compile(r"\s*(?P<id>[\w.-]+)\s*:\s*(?P<rest>.*?)\s*")
_BLOCK = re.compile(r"(?P<first>\d+)(?:\s*-\s*(?P<last>\d+))?\s+(?P<topic>\S.*)")
_SYNC = re.compile(r"s(\d+)")
_SKIP = re.compile(r"skip\s+(\S.*)")


class Unit(NamedTuple):
    """A stretch of an answer in characters; a block begins behind the list marker and label."""

    begin: int
    inside: int
    """The end of the marker and label, where a block begins."""
    end: int


class Marks(NamedTuple):
    """A reader's line on one answer; units count from 1."""

    id: str
    blocks: tuple[tuple[int, int, str], ...] = ()
    """First and last unit of each block, and its topic."""
    syncs: tuple[int, ...] = ()
    """Units before which a sync stands."""
    skip: str | None = None
    """Why the answer cannot be used; None if it can."""


def units(text: str) -> list[Unit]:
    """Cut an answer into its units: sentences, and paragraphs of code; white space is in none.

    List markers, heading signs and leading labels (``**Title:**``) stay outside a unit's inside.
    """
    return list(_units(text))


def shown(text: str) -> str:
    """Return an answer for a reader: a line for each unit, markers and labels in brackets."""
    lines, previous = [], 0
    for number, (begin, inside, end) in enumerate(units(text), start=1):
        outside = f"[{text[begin:inside]}]" if inside > begin else ""
        if "\n\n" in text[previous:begin]:
            lines.append("")
        lines.append(f"{number}| {outside}{text[inside:end]}")
        previous = end
    return "\n".join(lines)


def parse_marks(line: str) -> Marks:
    """Read a reader's line: ``instr-0061: 3-4 cell wall; 5 nucleus; s7``.

    ``instr-0061: -`` marks no block, and ``instr-0061: skip loops`` leaves the answer out.

    Raises:
        InputError: it is none of them; the part is named.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise InputError(f"no 'ID: marks' in {line!r}")
    name, rest = match["id"], match["rest"]
    if rest == "-":
        return Marks(name)
    if skip := _SKIP.fullmatch(rest):
        return Marks(name, skip=skip[1])
    blocks, syncs = [], []
    for part in filter(None, map(str.strip, rest.split(";"))):
        if sync := _SYNC.fullmatch(part):
            syncs.append(int(sync[1]))
        elif block := _BLOCK.fullmatch(part):
            blocks.append(
                (int(block["first"]), int(block["last"] or block["first"]), block["topic"])
            )
        else:
            raise InputError(
                f"{name}: {part!r} is no mark",
                hint="a block is '3-4 topic' or '3 topic', a sync 's5', no blocks '-'",
            )
    if not blocks:
        raise InputError(f"{name}: no block is marked", hint="an answer without blocks is '-'")
    return Marks(name, tuple(blocks), tuple(syncs))


def marked(text: str, marks: Marks, bounds: Bounds | None = None) -> Document:
    """Return the answer with the marked blocks and syncs; the blocks have no length yet.

    Spaces before a tag stand behind it (``Document.with_spaces_after_tags``).

    Raises:
        InputError: a mark names no unit or overlaps another, or ``filters.examine`` rejects the
            annotation.
    """
    places = units(text)
    _check_order(marks, len(places))
    document = Document(tuple(_items(text, places, marks)))
    found = examine(document.annotator_form(), text, bounds)
    if isinstance(found, Rejection):
        raise InputError(f"{marks.id}: {found.reason}: {found.message}")
    return found


def _check_order(marks: Marks, num_units: int) -> None:
    last_end = 0
    for first, last, topic in marks.blocks:
        if not last_end < first <= last <= num_units:
            raise InputError(
                f"{marks.id}: block {first}-{last} ({topic}) is out of order, overlaps the one "
                f"before, or is not within the {num_units} units"
            )
        last_end = last
    for unit in marks.syncs:
        if not 1 <= unit <= num_units:
            raise InputError(f"{marks.id}: s{unit} is not one of the {num_units} units")
        if any(first < unit <= last for first, last, _ in marks.blocks):
            raise InputError(f"{marks.id}: s{unit} is inside a block")


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
