"""Report every fault of a text with its place and a hint; apply the documented repairs."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from pasta_lm.language.parser import Form
from pasta_lm.language.walk import Walk

_BEFORE = 30  # characters of the line shown on either side of where a fault begins
_AFTER = 45


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
        """Return the object that ``pasta check --format json`` prints."""
        fields = ("code", "severity", "line", "column", "message", "hint")
        return {name: getattr(self, name) for name in fields}


def check(text: str, form: Form | str = Form.WRITTEN, max_depth: int = 1) -> list[Diagnostic]:
    """Return every fault of a text in the order of their places; none: it is valid.

    Raises:
        ValueError: the form is the inside of a block, which is never stored.
    """
    problems = Walk(text, Form(form), max_depth).problems
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))] if problems else [0]
    diagnostics = []
    for problem in problems:
        line = bisect_right(line_starts, problem.start)
        column = problem.start - line_starts[line - 1] + 1
        fault, length = problem.fault, problem.end - problem.start
        message = fault.message(problem.detail)
        diagnostics.append(
            Diagnostic(
                fault.code, fault.severity, line, column, message, fault.hint, problem.start, length
            )
        )
    return diagnostics


def fix(text: str, form: Form | str = Form.WRITTEN, max_depth: int = 1) -> str:
    """Return the text with the documented repairs applied.

    Tags are repaired, moved or removed; text is kept. An unreadable tag becomes text. ``check``
    finds no error in the result, and no space before a tag.
    """
    return Walk(text, Form(form), max_depth).repaired


def render(diagnostic: Diagnostic, text: str) -> str:
    """Return a diagnostic for people: message, place with a caret, hint."""
    return f"{describe(diagnostic, text)}\n    hint: {diagnostic.hint}"


def describe(diagnostic: Diagnostic, text: str) -> str:
    """Return the message of a diagnostic, its place, and the line with a caret, in three lines."""
    weight = "" if diagnostic.severity == "error" else "warning: "
    place = f"line {diagnostic.line}, column {diagnostic.column}"
    shown, caret = _excerpt(text, diagnostic.offset, diagnostic.length)
    return f"{place}: {weight}{diagnostic.message} ({diagnostic.code})\n    {shown}\n    {caret}"


def _excerpt(text: str, offset: int, length: int) -> tuple[str, str]:
    """Return the part of the line around an offset, and carets that stand under it."""
    # Only characters of the fault's own line: the carets stand under them.
    begin = max(text.rfind("\n", 0, offset) + 1, offset - _BEFORE)
    line_end = text.find("\n", offset)
    end = min(len(text) if line_end < 0 else line_end, offset + _AFTER)
    is_cut = begin > 0 and text[begin - 1] != "\n"
    before = ("..." if is_cut else "") + _printable(text[begin:offset])
    num_carets = max(1, min(length, end - offset))
    after = _printable(text[offset:end])
    is_cut = end < len(text) and text[end] != "\n"
    return before + after + ("..." if is_cut else ""), " " * len(before) + "^" * num_carets


def _printable(text: str) -> str:
    """Return the text with one plain character for each that would move the caret."""
    return "".join(character if character.isprintable() else " " for character in text)
