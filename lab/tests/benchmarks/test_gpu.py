"""The GPU benchmark runs on a CPU with a tiny model, goes on where it was cut, and reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.nn.attention import flex_attention

from lab.benchmarks import gpu, gpu_report
from lab.benchmarks.gpu import CUT, DONE, FAILED, OWN_ANSWERS, ROOT, SECTIONS, Results, run
from lab.benchmarks.gpu_sections import Conditions

TINY = {
    "device": "cpu",
    "is_tiny": True,
    "shape": ROOT / "lab" / "benchmarks" / "shapes" / "tiny.json",
    "answers_file": OWN_ANSWERS,
    "weights": None,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    found = Results.at(tmp_path_factory.mktemp("gpu") / "out.json")
    run(found, TINY, list(SECTIONS), seconds=600)
    return found


def test_every_section_is_done_and_has_figures(results: Results) -> None:
    read = json.loads(results.path.read_text())["sections"]
    assert {name: one["status"] for name, one in read.items()} == dict.fromkeys(SECTIONS, DONE)
    assert read["exactness"]["architectures"]["llama"]["float32_worst"] <= 1e-4
    assert read["steps"]["step_ms"]["16"].keys() == {"1", "2", "4"}
    assert read["answers"]["theoretical_speedup"] > 1
    assert len(read["answers"]["answers"]) == 2
    assert all(one["device_ms"] > 0 for one in read["host"]["steps"])
    assert [one["requests"] for one in read["load"]["loads"]] == [1, 2]
    assert read["attention"]["cases"]
    (case,) = read["alternatives"]["cases"]
    for name in ("flex", "gathered") if hasattr(flex_attention, "AuxRequest") else ("gathered",):
        assert case[name]["us"] > 0
        assert case[name]["relative_error"] <= 1e-5


def test_the_report_has_every_table_and_fills_the_marked_block(
    results: Results, tmp_path: Path
) -> None:
    block = gpu_report.text(results.sections)
    for words in ("masked pass", "sequential", "paper, Pasta-BoN", "perfect overlap", "Under load"):
        assert words in block
    assert "| 1 rows, 1 requests, 16 heads | - |" in block  # no Triton on a CPU
    document = f"before\n{gpu_report.BEGIN}\nold\n{gpu_report.END}\nafter\n"
    filled = gpu_report.fill(document, block)
    assert "old" not in filled
    assert gpu_report.fill(filled, block) == filled
    with pytest.raises(ValueError, match="needs a line"):
        gpu_report.fill("no marks", block)
    gpu_report.draw(results.sections, tmp_path / "gpu.png")
    assert (tmp_path / "gpu.png").stat().st_size > 5_000


def test_the_results_page_has_the_marks() -> None:
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert gpu_report.fill(page, "x").count("\nx\n") == 1


def test_a_second_run_goes_on_with_what_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def fails(at: Conditions) -> None:
        called.append("fails")
        at.note(half=1)
        raise RuntimeError("no memory")

    def cut(at: Conditions) -> None:
        called.append("cut")
        at.was_cut = len(called) < 4

    def done(at: Conditions) -> None:
        called.append("done")

    sections = {"fails": (fails, 9.0), "done": (done, 9.0), "cut": (cut, 9.0)}
    monkeypatch.setattr(gpu, "SECTIONS", sections)
    path = tmp_path / "out.json"
    run(Results.at(path), TINY, list(sections))
    first = Results.at(path)
    assert [one["status"] for one in first.sections.values()] == [FAILED, DONE, CUT]
    assert "no memory" in first.sections["fails"]["error"]
    assert first.sections["fails"]["half"] == 1
    assert "**failed**" not in gpu_report.text(first.sections)  # it is no section of the report
    run(first, TINY, list(sections))
    assert called == ["fails", "done", "cut", "fails", "cut"]
    assert Results.at(path).sections["cut"]["status"] == DONE


def test_no_section_begins_when_the_time_is_over(tmp_path: Path) -> None:
    found = Results.at(tmp_path / "out.json")
    run(found, TINY, list(SECTIONS), seconds=-1)
    assert not found.sections
