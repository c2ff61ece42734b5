"""Every string of up to six symbols, against an oracle that knows the grammar in another way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import pytest

from pasta_lm.language.check import check
from pasta_lm.language.parser import Form
from tests.language import laws

SPELLING = {
    "t": "text",
    "P": '<promise topic="a" tokens="2"/>',
    "O": "<async>",
    "A": '<async topic="a">',
    "C": "</async>",
    "S": "<sync/>",
}
VALID = {
    (Form.WRITTEN, 1): re.compile("(t|S|POt*C)*"),
    (Form.WRITTEN, 2): re.compile("(t|S|PO(t|POt*C)*C)*"),
    (Form.MAIN, 1): re.compile("[tPS]*"),
    (Form.ANNOTATOR, 1): re.compile("(t|S|At*C)*"),
    (Form.ANNOTATOR, 2): re.compile("(t|S|A(t|At*C)*C)*"),
}


def strings(symbols: str, longest: int) -> Iterator[str]:
    for length in range(longest + 1):
        yield from map("".join, product(symbols, repeat=length))


def spell(symbols: str) -> str:
    return "".join(SPELLING[symbol] for symbol in symbols)


def written_codes(symbols: str) -> list[str]:
    """Count what is wrong in written form by looking at neighbours and at depth alone."""
    codes = ["PASTA014"] * len(re.findall("P[tS]+O", symbols))
    symbols = re.sub("P([tS]+)(?=O)", r"\1P", symbols)
    codes += ["PASTA013"] * len(re.findall("P(?!O)", symbols))
    codes += ["PASTA012"] * len(re.findall("(?<!P)O", symbols))
    codes += ["PASTA102"] * len(re.findall("O[SP]*C", symbols))
    return sorted(codes + depth_codes(symbols, opening="O", nested="P|(?<!P)O"))


def annotator_codes(symbols: str) -> list[str]:
    codes = ["PASTA020"] * symbols.count("P") + ["PASTA021"] * symbols.count("O")
    codes += ["PASTA102"] * len(re.findall("[AO][SP]*C", symbols))
    return sorted(codes + depth_codes(symbols, opening="AO", nested="[AO]"))


def main_codes(symbols: str) -> list[str]:
    codes = ["PASTA019"] * symbols.count("O")
    flat = depth_codes(symbols, opening="O", nested="(?!)")
    codes += [code for code in flat if code == "PASTA017"]
    idle = re.findall("S", re.sub("[PO][^S]*S", "", symbols))
    return sorted(codes + ["PASTA101"] * len(idle))


def depth_codes(symbols: str, opening: str, nested: str) -> list[str]:
    """Count what only the number of open blocks makes wrong."""
    codes, depth, is_idle = [], 0, True
    for at, symbol in enumerate(symbols):
        if depth and re.compile(nested).match(symbols, at):
            codes.append("PASTA015")
        if symbol in opening:
            depth, is_idle = depth + 1, False
        elif symbol == "C":
            codes += [] if depth else ["PASTA017"]
            depth = max(0, depth - 1)
        elif symbol == "S":
            codes += ["PASTA018"] if depth else ["PASTA101"] * is_idle
            is_idle = is_idle or not depth
    return codes + ["PASTA016"] * depth


ORACLES = {Form.WRITTEN: written_codes, Form.MAIN: main_codes, Form.ANNOTATOR: annotator_codes}


@pytest.mark.parametrize(
    ("form", "symbols", "longest"),
    [
        (Form.WRITTEN, "tPOCS", 6),
        (Form.MAIN, "tPOCS", 5),
        (Form.ANNOTATOR, "tACS", 6),
        (Form.ANNOTATOR, "tPOACS", 4),
    ],
)
def test_every_short_string_has_exactly_the_faults_that_the_oracle_counts(
    form: Form, symbols: str, longest: int
) -> None:
    for string in strings(symbols, longest):
        codes = sorted(diagnostic.code for diagnostic in check(spell(string), form))
        assert codes == ORACLES[form](string), string


@pytest.mark.parametrize(
    ("form", "max_depth", "symbols", "longest"),
    [
        (Form.WRITTEN, 1, "tPOCS", 5),
        (Form.WRITTEN, 2, "tPOC", 6),
        (Form.MAIN, 1, "tPOCS", 4),
        (Form.ANNOTATOR, 1, "tACS", 6),
        (Form.ANNOTATOR, 2, "tAC", 6),
    ],
)
def test_a_short_string_is_parsed_exactly_if_the_regular_expression_matches(
    form: Form, max_depth: int, symbols: str, longest: int
) -> None:
    for string in strings(symbols, longest):
        is_valid = VALID[form, max_depth].fullmatch(string) is not None
        assert laws.is_parsed(spell(string), form, max_depth) == is_valid, string


def test_every_short_string_is_valid_once_it_is_fixed() -> None:
    for form in laws.STORED_FORMS:
        for string in strings("tPOACS", 4):
            laws.assert_check_parse_and_fix_agree(spell(string), form)
