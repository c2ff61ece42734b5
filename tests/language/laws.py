"""State what holds for every text, and the texts worth trying; tests and the fuzzer share it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pasta_lm.errors import PastaSyntaxError
from pasta_lm.language.check import check, fix
from pasta_lm.language.document import parse
from pasta_lm.language.faults import Fault
from pasta_lm.language.lexer import Lexeme, LexemeKind, Lexer
from pasta_lm.language.parser import Form
from pasta_lm.language.tags import escape, unescape

STORED_FORMS = (Form.WRITTEN, Form.MAIN, Form.ANNOTATOR)

FRAGMENTS = (
    *("<", ">", "/>", "</", "/", "&", "amp;", "lt;", "&lt;", "&amp;lt;", '"', "'", "=", "-", "\n"),
    *("promise", "async", "sync", "asynchronous", " ", "x", "two words", "a" * 70, "\u00e9"),
    *(' topic="a"', " topic='b c'", " tokens=3", ' tokens="0"', ' tokens="70"', ' other="1"'),
    *("<async>", "</async>", "<sync/>", "<sync />", "<sync>", "<async/>", "</promise>"),
    *('<promise topic="a" tokens="2"/>', '<promise topic="a b c d" tokens="2"/>'),
    *('<promise topic="a" tokens="2"/><async>', '<promise topic="" tokens="+1"/>'),
    *('<async topic="a">', '<async topic="a b c d">', '<promise topic="', "<promise tokens="),
)


def lex(pieces: Iterable[str]) -> list[Lexeme]:
    """Return the lexemes of a text that comes in pieces, adjacent text merged."""
    lexer = Lexer()
    lexemes = [lexeme for piece in pieces for lexeme in lexer.feed(piece)]
    return merged([*lexemes, *lexer.close()])


def merged(lexemes: Iterable[Lexeme]) -> list[Lexeme]:
    """Merge text that is adjacent; a promise's topic is a lexeme of its own, without a place."""
    result: list[Lexeme] = []
    for lexeme in lexemes:
        if result and _is_stretch(result[-1]) and _is_stretch(lexeme):
            first = result.pop()
            lexeme = replace(lexeme, text=first.text + lexeme.text, start=first.start)
        result.append(lexeme)
    return result


def _is_stretch(lexeme: Lexeme) -> bool:
    return lexeme.kind is LexemeKind.TEXT and lexeme.start < lexeme.end


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def errors(text: str, form: Form, max_depth: int = 1) -> list[str]:
    """Return the codes of a text's errors, warnings left out."""
    found = check(text, form, max_depth)
    return [diagnostic.code for diagnostic in found if diagnostic.severity == "error"]


def is_parsed(text: str, form: Form, max_depth: int = 1) -> bool:
    """Return whether the parser takes a text; what it takes must print and read back the same."""
    try:
        document = parse(text, form, max_depth)
    except PastaSyntaxError:
        return False
    print_form = {
        Form.WRITTEN: document.written,
        Form.MAIN: document.main_form,
        Form.ANNOTATOR: document.annotator_form,
    }[form]
    assert parse(print_form(), form, max_depth) == document
    return True


def assert_cuts_change_nothing(text: str, sizes: Iterable[int] = (1, 2, 3, 7)) -> None:
    """Hold the lexemes of a text to be the same however it is cut."""
    whole = lex([text])
    for size in sizes:
        assert lex(cut(text, size)) == whole, (text, size)


def assert_escape_is_reversible(text: str) -> None:
    """Hold that escaped text is one stretch of text, which reads as what was escaped."""
    assert unescape(escape(text)) == text
    assert [lexeme.text for lexeme in lex(cut(escape(text), 1))] == [text][: len(text)]


def assert_check_parse_and_fix_agree(text: str, form: Form, max_depth: int = 1) -> None:
    """Hold that a text is parsed if it has no errors, and has none once it is fixed."""
    is_valid = not errors(text, form, max_depth)
    assert is_parsed(text, form, max_depth) == is_valid, (text, form)
    fixed = fix(text, form, max_depth)
    assert not errors(fixed, form, max_depth), (text, form, fixed)
    codes = [diagnostic.code for diagnostic in check(fixed, form, max_depth)]
    assert Fault.SPACE_BEFORE_TAG.code not in codes, (text, form, fixed)
    if is_valid:
        assert_only_spaces_moved(text, fixed, form, max_depth)


def assert_only_spaces_moved(text: str, fixed: str, form: Form, max_depth: int) -> None:
    """Hold that the repair of a valid text is what ``Document`` makes of its spaces."""
    document = parse(text, form, max_depth)
    moved = document if form is Form.MAIN else document.with_spaces_after_tags()
    assert parse(fixed, form, max_depth) == moved, (text, form, fixed)
    found = [diagnostic.code for diagnostic in check(text, form, max_depth)]
    assert (fixed == text) == (moved == document), (text, form, fixed)
    assert (Fault.SPACE_BEFORE_TAG.code in found) == (moved != document), (text, form, found)


def assert_laws(text: str) -> None:
    """Hold a text to everything above."""
    assert_cuts_change_nothing(text)
    assert_escape_is_reversible(text)
    for form in STORED_FORMS:
        assert_check_parse_and_fix_agree(text, form)
    assert_check_parse_and_fix_agree(text, Form.WRITTEN, max_depth=2)
