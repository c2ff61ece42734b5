"""Tables and lists of facts on standard output."""

from __future__ import annotations

import json

import pytest

from pasta_lm.cli import exit_codes
from pasta_lm.cli.tables import number, print_facts, print_json, table_lines


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_stand_to_the_right() -> None:
    rows = [("sequential", "1.00", "no"), ("sot", "12.50", "not run: pasta evaluate"), ("x", "-")]
    assert table_lines(("", "speedup", "note"), rows, text_columns=(0, 2)) == [
        "            speedup  note",
        "sequential     1.00  no",
        "sot           12.50  not run: pasta evaluate",
        "x           -",
    ]


def test_a_note_in_a_short_row_does_not_widen_its_column() -> None:
    rows = [("a", "not run: a long command"), ("b", "1")]
    assert table_lines(("", "n"), [("b", "1")]) == ["   n", "b  1"]
    assert table_lines(("", "n", "m"), [*rows[:1], ("b", "1", "2")]) == [
        "   n  m",
        "a  not run: a long command",
        "b  1  2",
    ]


def test_values_of_all_sections_start_in_the_same_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_facts([("torch", "2")], [("prometheus-client", "1"), ("a", "b")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["torch              2", "", "prometheus-client  1", "a                  b"]


def test_cells_say_when_there_is_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert (number(None), number(1.234), number(2.5, 1, "x")) == ("-", "1.23", "2.5x")
    print_json({"a": "é"})
    assert json.loads(capsys.readouterr().out) == {"a": "é"}


def test_exit_codes_are_those_of_the_documentation() -> None:
    codes = (exit_codes.DONE, exit_codes.FAILED, exit_codes.USAGE, exit_codes.INVALID)
    assert (*codes, exit_codes.INTERRUPTED) == (0, 1, 2, 3, 130)
