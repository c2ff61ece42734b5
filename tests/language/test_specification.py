"""Hold docs/language.md to what the language does: its diagnostics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pasta_lm.language.check import check, fix
from pasta_lm.language.faults import Fault

PAGE = (Path(__file__).parents[2] / "docs" / "language.md").read_text("utf-8")
ABBREVIATIONS = {
    "P()": '<promise topic="a" tokens="1"/><async>b</async>',
    "PASTA": "PASTA",
    "P": '<promise topic="a" tokens="1"/>',
    "LONG": "a" * 1100,
    "CUT": "a" * 64,
}
ROWS = re.findall(r"^\| (PASTA\d+) \| (.*) \| (\w+) \| `(.*)` \| `(.*)` \|$", PAGE, re.MULTILINE)


def spell_out(example: str, *, longest: int) -> str:
    pattern = "|".join(map(re.escape, ABBREVIATIONS))
    return re.sub(pattern, lambda match: ABBREVIATIONS[match.group()][:longest], example)


@pytest.mark.parametrize(("code", "message", "form", "example", "fixed"), ROWS)
def test_a_diagnostic_is_what_the_table_says(
    code: str, message: str, form: str, example: str, fixed: str
) -> None:
    longest = 100 if "topic=" in example else 2000  # a topic that is too long fits into a tag
    text = spell_out(example, longest=longest)
    (diagnostic,) = check(text, form)
    assert diagnostic.code == code
    pattern = ".+".join(map(re.escape, message.split("\u2026")))
    assert re.fullmatch(pattern, diagnostic.message)
    assert diagnostic.severity == ("warning" if code.startswith("PASTA1") else "error")
    assert fix(text, form) == spell_out(fixed, longest=longest)


def test_every_fault_is_in_the_specification_and_has_a_code_of_its_own() -> None:
    codes = [fault.code for fault in Fault]
    assert len(set(codes)) == len(codes)
    assert {row[0] for row in ROWS} == set(codes) - {Fault.AFTER_END.code}
    assert Fault.AFTER_END.code in PAGE
    assert all(fault.hint for fault in Fault)
