"""``pasta check`` and ``pasta view``: texts and traces."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.language import check, fix, parse
from tests.cli.conftest import Pasta

VALID = 'Two.<promise topic="a" tokens="1"/><async> One two three four five.</async><sync/>\n'
BROKEN = "Two.\nThen <sync/> and </async>"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    file = tmp_path / "broken.txt"
    file.write_text(BROKEN)
    return file


def test_an_invalid_text_is_shown_with_places_and_hints(pasta: Pasta, broken: Path) -> None:
    result = pasta("check", broken)
    assert (result.code, result.err) == (3, "")
    for diagnostic in check(BROKEN):
        assert f"{broken}: line {diagnostic.line}, column {diagnostic.column}: " in result.out
        assert f"    hint: {diagnostic.hint}\n" in result.out


def test_json_has_exactly_the_documented_shape(pasta: Pasta, broken: Path) -> None:
    valid = pasta("check", "-", "--format", "json", stdin=VALID).json
    assert valid == {"valid": True, "diagnostics": []}
    result = pasta("check", broken, "--format", "json")
    assert result.code == 3
    assert result.json["valid"] is False
    for row, diagnostic in zip(result.json["diagnostics"], check(BROKEN), strict=True):
        assert list(row) == ["code", "severity", "line", "column", "message", "hint"]
        assert row["code"] == diagnostic.code


def test_fix_prints_the_repaired_text_and_nothing_else(pasta: Pasta, broken: Path) -> None:
    result = pasta("check", broken, "--fix")
    assert (result.code, result.out) == (0, fix(BROKEN))
    assert "hint:" in result.err
    assert pasta("check", "-", stdin=result.out).code == 0


def test_a_file_that_is_not_utf_8_is_invalid_input(pasta: Pasta, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    result = pasta("check", tmp_path / "bytes")
    assert result.code == 3
    assert "byte 3" in result.err


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.json"
    file.write_text(ScriptedEngine(parse(VALID)).answer("hello there").trace.to_json())
    return file


def test_view_shows_the_threads_of_a_trace(pasta: Pasta, trace: Path) -> None:
    result = pasta("view", trace)
    assert (result.code, result.err) == (0, "")
    assert "\nmain " in result.out
    assert "\n1 a " in result.out
    assert "simulated" in result.out
    assert "\x1b" not in result.out


def test_view_writes_for_perfetto(pasta: Pasta, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = pasta("view", trace, "--perfetto", out)
    assert (result.code, result.out) == (0, "")
    assert json.loads(out.read_text())["traceEvents"]
    assert pasta("view", trace, "--perfetto", tmp_path / "no" / "out.json").code == 1


def test_view_draws_a_bar_for_each_stretch_of_a_thread(pasta: Pasta, tmp_path: Path) -> None:
    file, out = tmp_path / "trace.json", tmp_path / "out.svg"
    document = parse('Go:<promise topic="a<b" tokens="1"/><async> one</async><sync/> End.')
    file.write_text(ScriptedEngine(document).answer("hello there").trace.to_json())
    assert pasta("view", file, "--svg", out).code == 0
    shapes = [*ElementTree.parse(out).iter()]
    assert {"main", "a<b"} < {shape.text for shape in shapes}
    bars = [shape.attrib for shape in shapes if shape.get("class") == "bar"]
    assert len({bar["y"] for bar in bars}) == 2
    assert 880 < max(float(bar["x"]) + float(bar["width"]) for bar in bars) < 900
