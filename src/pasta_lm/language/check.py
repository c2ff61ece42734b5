"""Report every fault of a text with its place and a hint; apply the documented repairs.

Lexer and table are those of the parser: ``Parser.fault`` names the fault, and the walk over the
text only adds how to continue. Blocks whose tags will be removed still count as blocks, so that one
mistake is one fault. Repairs change tags, never text; the table in docs/language.md lists them.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from pasta_lm.language import tags
from pasta_lm.language.faults import Fault, Problem
from pasta_lm.language.lexer import Lexeme, LexemeKind, Lexer
from pasta_lm.language.parser import Form, Parser, opens_level

_BEFORE, _AFTER = 30, 45  # characters of the line shown on either side of where a fault begins
_BETWEEN = (LexemeKind.TEXT, LexemeKind.SYNC, LexemeKind.FAULT)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault of one text; lines and columns count from 1, in characters."""

    code: str
    severity: str  # ``"error"`` or ``"warning"``; a text with warnings alone is valid
    line: int
    column: int
    message: str
    hint: str
    offset: int  # where the caret begins, in characters from the start of the text
    length: int  # how many characters the caret marks

    def to_row(self) -> dict[str, str | int]:
        fields = ("code", "severity", "line", "column", "message", "hint")
        return {name: getattr(self, name) for name in fields}


def check(text: str, form: Form | str = Form.WRITTEN, max_depth: int = 1) -> list[Diagnostic]:
    """Return every fault of a text in the order of their places; none: it is valid."""
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    diagnostics = []
    for problem in _Walk(text, Form(form), max_depth).problems:
        line = bisect_right(line_starts, problem.start)
        column = problem.start - line_starts[line - 1] + 1
        fault, span = problem.fault, (problem.start, problem.end - problem.start)
        words = fault.message(problem.detail), fault.hint
        diagnostics.append(Diagnostic(fault.code, fault.severity, line, column, *words, *span))
    return diagnostics


def fix(text: str, form: Form | str = Form.WRITTEN, max_depth: int = 1) -> str:
    """Return the text, repaired: ``check`` finds no error in it, and no space before a tag."""
    return _Walk(text, Form(form), max_depth).repaired


def render(diagnostic: Diagnostic, text: str) -> str:
    return f"{describe(diagnostic, text)}\n    hint: {diagnostic.hint}"


def describe(diagnostic: Diagnostic, text: str) -> str:
    """Return the message of a diagnostic, its place, and the line with a caret, in three lines."""
    weight = "" if diagnostic.severity == "error" else "warning: "
    where = f"line {diagnostic.line}, column {diagnostic.column}"
    offset, line_start = diagnostic.offset, diagnostic.offset - diagnostic.column + 1
    begin = max(line_start, offset - _BEFORE)
    line = text[begin : offset + _AFTER + 1].partition("\n")[0]
    lead, shown = "..." if begin > line_start else "", line[: offset - begin + _AFTER]
    num_carets = max(1, min(diagnostic.length, begin + len(shown) - offset))
    caret = " " * (len(lead) + offset - begin) + "^" * num_carets
    rest = "..." if len(shown) < len(line) else ""
    shown = "".join(letter if letter.isprintable() else " " for letter in shown)
    message = f"{where}: {weight}{diagnostic.message} ({diagnostic.code})"
    return f"{message}\n    {lead}{shown}{rest}\n    {caret}"


@dataclass(slots=True)
class _Open:
    piece: Lexeme
    is_kept: bool
    is_empty: bool = True


class _Walk:
    """One pass over a text in one form; ``problems`` and ``repaired`` are its results."""

    def __init__(self, text: str, form: Form, max_depth: int) -> None:
        if form in (Form.BLOCK, Form.FORKED):
            raise ValueError(f"the form {form} is decoded, not stored: it cannot be checked")
        self.problems: list[Problem] = []
        self._text, self._form, self._max_depth = text, form, max_depth
        self._parser = Parser(form, sys.maxsize)  # the walk itself checks the depth
        self._kept: list[tuple[str, Lexeme | None]] = []  # as written; the piece, if it is text
        self._open: list[_Open] = []
        self._is_promise_kept = False
        self._num_unjoined = 0
        pieces = list(_pieces(text))
        if form is Form.WRITTEN:
            pieces = list(self._put_blocks_after_promises(pieces))
        for piece, following in pairwise([*pieces, Lexeme(LexemeKind.FAULT)]):
            self._take(piece, following)
        for block in reversed(self._open):  # the innermost is closed first
            if form is not Form.MAIN:
                self._report(Fault.UNCLOSED_BLOCK, block.piece)
            if block.is_kept:
                self._keep_tag(tags.ASYNC_CLOSE)
        self.repaired = "".join(self._write())
        # A promise is walked before the text that stood between it and its block.
        self.problems.sort(key=lambda problem: (problem.start, problem.fault.code))

    def _write(self) -> Iterator[str]:
        grouped = groupby(self._kept, lambda kept: kept[1] is not None)
        runs = [(is_text, list(run)) for is_text, run in grouped]
        # Text on both sides of a removed tag can spell a new tag.
        texts = [
            tags.escape("".join(piece.text for _, piece in run if piece)) if run[1:] else run[0][0]
            for is_text, run in runs
            if is_text
        ]
        # In main form the text that comes next to a space may be that of a block, which is absent.
        after_tags = texts if self._form is Form.MAIN else tags.spaces_after_tags(texts)
        moved = zip(texts, after_tags, strict=True)
        for _, run in runs:
            last = run[-1][1]
            if last is None:
                yield from (source for source, _ in run)
                continue
            before, after = next(moved)
            if before.endswith(" ") and not after.endswith(" "):
                num_moved = len(before) - len(before.rstrip(" "))
                span = max(last.start, last.end - num_moved), last.end
                self.problems.append(Problem(Fault.SPACE_BEFORE_TAG, "", *span))
            yield after

    def _put_blocks_after_promises(self, pieces: list[Lexeme]) -> Iterator[Lexeme]:
        at = 0
        while at < len(pieces):
            end = at + 1
            if pieces[at].kind is LexemeKind.PROMISE_OPEN:
                # Any other tag ends the search: the promise has no block.
                while end < len(pieces) and pieces[end].kind in _BETWEEN:
                    end += 1
                has_block = end < len(pieces) and pieces[end].kind is LexemeKind.ASYNC_OPEN
                end = end if has_block else at + 1
                between = pieces[at + 1 : end]
                if readable := [piece for piece in between if piece.kind is not LexemeKind.FAULT]:
                    span = readable[0].start, readable[-1].end
                    self.problems.append(Problem(Fault.BETWEEN, "", *span))
                yield from between
            yield pieces[at]
            at = end

    def _take(self, piece: Lexeme, following: Lexeme) -> None:
        self.problems += piece.problems
        match piece.kind:
            case LexemeKind.TEXT:
                self._keep_text(piece, self._text[piece.start : piece.end])
            case LexemeKind.SYNC:
                self._take_sync(piece)
            case LexemeKind.PROMISE_OPEN:
                self._take_promise(piece, following)
            case LexemeKind.ASYNC_OPEN:
                self._take_open(piece)
            case LexemeKind.ASYNC_CLOSE:
                self._take_close(piece)
            case _:
                if piece.problems[0].fault is not Fault.WRONG_SLASH:
                    self._keep_text(piece, tags.escape(piece.text))

    def _take_sync(self, piece: Lexeme) -> None:
        if not self._is_legal(piece):
            return
        if self._num_unjoined == 0:
            self._report(Fault.IDLE_SYNC, piece)
        self._num_unjoined = 0
        self._keep_tag(tags.SYNC if piece.problems else piece.text)

    def _take_promise(self, piece: Lexeme, following: Lexeme) -> None:
        if not self._is_legal(piece):
            return
        tag = None if self._is_too_deep(piece) else _repaired(piece)
        if piece.units is not None and piece.units > tags.MAX_UNITS:
            self._report(Fault.OVERLONG, piece)
        if self._form is Form.WRITTEN and following.kind is not LexemeKind.ASYNC_OPEN:
            self._report(Fault.PROMISE_WITHOUT_BLOCK, piece)
            return
        self._feed_promise()  # even if the tag goes: its block is then no fault of its own
        self._is_promise_kept = tag is not None
        if self._form is Form.MAIN:
            self._num_unjoined += 1
        self._keep_tag(tag)

    def _take_open(self, piece: Lexeme) -> None:
        if wrong := self._parser.fault(piece):
            self._report(wrong, piece, "topic")
        is_too_deep = self._form is not Form.MAIN and self._is_too_deep(piece)
        tag = None
        if self._form is Form.ANNOTATOR:
            tag = None if is_too_deep else _repaired(piece)
        elif wrong in (None, Fault.UNKNOWN_ATTRIBUTE) and self._is_promise_kept:
            tag = tags.ASYNC_OPEN if wrong or piece.problems else piece.text
        if wrong is Fault.BLOCK_WITHOUT_PROMISE:
            self._feed_promise()  # as if it were there, so that the closing tag is no fault
        if self._form is not Form.MAIN:
            topic = "" if self._form is Form.ANNOTATOR else None
            self._parser.feed(Lexeme(LexemeKind.ASYNC_OPEN, topic=topic))
        if self._open:
            self._open[-1].is_empty = False
        self._open.append(_Open(piece, is_kept=tag is not None))
        self._num_unjoined += 1
        self._keep_tag(tag)

    def _take_close(self, piece: Lexeme) -> None:
        if not self._open:
            self._is_legal(piece)  # reports the fault
            return
        block = self._open.pop()
        if self._form is not Form.MAIN:
            self._parser.feed(Lexeme(LexemeKind.ASYNC_CLOSE))
            if block.is_empty:
                self._report(Fault.EMPTY_BLOCK, block.piece)
        if block.is_kept:
            self._keep_tag(tags.ASYNC_CLOSE if piece.problems else piece.text)

    def _is_legal(self, piece: Lexeme) -> bool:
        if wrong := self._parser.fault(piece):
            self._report(wrong, piece)
        return wrong is None

    def _is_too_deep(self, piece: Lexeme) -> bool:
        lacks_promise = self._parser.fault(piece) is Fault.BLOCK_WITHOUT_PROMISE
        kind = LexemeKind.PROMISE_OPEN if lacks_promise else piece.kind
        if not opens_level(self._form, kind) or self._parser.depth < self._max_depth:
            return False
        self._report(Fault.NESTED, piece, f"{self._max_depth} at most")
        return True

    def _feed_promise(self) -> None:
        self._parser.feed(Lexeme(LexemeKind.PROMISE_OPEN))
        self._parser.feed(Lexeme(LexemeKind.PROMISE_CLOSE, units=1))

    def _report(self, fault: Fault, piece: Lexeme, detail: str = "") -> None:
        self.problems.append(Problem(fault, detail, piece.start, piece.end))

    def _keep_tag(self, source: str | None) -> None:
        if source is not None:
            self._kept.append((source, None))

    def _keep_text(self, piece: Lexeme, source: str) -> None:
        self._kept.append((source, piece))
        if self._open and piece.text.strip():
            self._open[-1].is_empty = False


def _pieces(text: str) -> Iterator[Lexeme]:
    lexer = Lexer()
    lexemes = iter(lexer.feed(text) + lexer.close())
    run: Lexeme | None = None
    for lexeme in lexemes:
        if lexeme.kind is LexemeKind.TEXT:
            before = run or replace(lexeme, text="")
            run = replace(before, text=before.text + lexeme.text, end=lexeme.end)
            continue
        if run:
            yield run
            run = None
        piece = replace(lexeme, kind=lexeme.meant or lexeme.kind)
        if lexeme.kind is LexemeKind.PROMISE_OPEN:
            piece = replace(piece, topic=next(lexemes).text, units=next(lexemes).units)
        yield piece
    if run:
        yield run


def _repaired(piece: Lexeme) -> str | None:
    topic = piece.topic
    is_promise = piece.kind is LexemeKind.PROMISE_OPEN
    if not topic or not topic.split() or (is_promise and piece.units is None):
        return None
    if not piece.problems:
        return piece.text
    topic = tags.bounded_topic(topic)
    return tags.promise_tag(topic, piece.units or 1) if is_promise else tags.annotator_open(topic)
