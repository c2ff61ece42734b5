"""The figures of a table of speed: valid files with titles, drawn from what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from pasta_lab.cli.app import app
from pasta_lab.evaluate.figures import Place, Span, scatter, speed_figures
from pasta_lm.measure.speed import speed_report
from tests.measure.test_speed_table import record

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    rows = [record("sequential", "1", 40, 2.0), record("pasta", "1", 10, 2.0)]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_figure_4_needs_a_win_rate_and_a_clock(records: Path) -> None:
    table = speed_report([records], "sequential").to_dict()["systems"]
    rates = {"pasta": {"length_controlled_winrate": 48.7, "lc_standard_error": 1.0}}
    assert "figure-4" not in speed_figures(table, {})
    assert "figure-4" not in speed_figures(table, {"other": rates["pasta"]})
    drawn = speed_figures(table, rates)
    assert [*drawn] == ["figure-4"]
    assert "pasta (1.00, 48.7)" in drawn["figure-4"]
    assert "sequential (" not in drawn["figure-4"]


def test_a_figure_is_valid_xml_with_a_title_and_a_description() -> None:
    name = 'a <b> & "c"'
    places = [Place(name, Span(1.9, 1.8, 2.0), Span(40, 35, 45))]
    for drawn in (
        scatter(name, ("x", "y"), places),
        scatter(name, ("x", "y"), []),
    ):
        root = ElementTree.fromstring(drawn)
        title, description, *_ = root
        assert root.get("role") == "img"
        assert (title.tag, title.text) == (f"{SVG}title", name)
        assert description.tag == f"{SVG}desc"
    assert f"{name} (1.90, 40.00)" in (
        ElementTree.fromstring(scatter("", ("", ""), places))[1].text or ""
    )


def test_the_verb_writes_figures_and_explains_a_missing_one(records: Path, tmp_path: Path) -> None:
    rates, out = tmp_path / "rates.json", tmp_path / "figures"
    rates.write_text(json.dumps({"pasta": {"win_rate": 45.0, "standard_error": 2.0}}))
    command = ["evaluate", "figures", str(records), "--out", str(out)]
    assert "no Figure 4" in CliRunner().invoke(app, command).stderr
    result = CliRunner().invoke(app, [*command, "--win-rates", str(rates)])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "(1.00, 45.0)" in (out / "figure-4.svg").read_text()
